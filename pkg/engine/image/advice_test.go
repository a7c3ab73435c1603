package image

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/containerd/log"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sirupsen/logrus"
)

// logged is a context whose log is kept, from the level of an operator on.
func logged(ctx context.Context) (context.Context, *bytes.Buffer) {
	var text bytes.Buffer
	logger := &logrus.Logger{Out: &text, Formatter: &logrus.JSONFormatter{}, Hooks: logrus.LevelHooks{}, Level: log.InfoLevel}
	return log.WithLogger(ctx, logrus.NewEntry(logger)), &text
}

// A registry on localhost needs no configuration, so the log has nothing to advise.
func TestPullFromLocalhostAdvisesNothing(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", build(t, v1.Config{}, layer(t, file{name: "f"})))
	ctx, text := logged(t.Context())
	host := strings.TrimPrefix(reg.back.URL, "http://")
	if _, err := openStore(t, Config{}).Pull(ctx, PullRequest{Ref: host + "/app:1"}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "Image pulled") || strings.Contains(text.String(), "TLS") {
		t.Errorf("the log has\n%s", text)
	}
}
