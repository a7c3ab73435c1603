package registry

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

func TestOriginCovers(t *testing.T) {
	for _, c := range []struct {
		from, to string
		covers   bool
	}{
		{"http://r", "https://r", true},
		{"http://r", "http://R:80", true},
		{"http://r", "https://r:8443", true},
		{"https://r", "https://r:8443", true},
		{"https://r:8443", "https://r", true},
		{"https://r", "http://r", false},
		{"https://r", "http://r:443", false},
		{"http://r", "http://r:8080", false},
		{"https://r", "https://s.r", false},
		{"https://s.r", "https://r", false},
		{"https://r", "https://r.", false},
		{"https://10.0.0.1", "https://10.0.0.1:8443", true},
		{"https://10.0.0.1:8443", "https://10.0.0.2:8443", false},
		{"https://[::1]", "https://[::1]:8443", true},
		{"https://[fe80::1%25eth0]", "https://[fe80::1%25eth0]:8443", true},
		{"https://[fe80::1%25eth0]", "https://[fe80::1%25eth1]:8443", false},
		{"http://10.0.0.1", "https://10.0.0.1", true},
		{"https://10.0.0.1", "http://10.0.0.1", false},
	} {
		from, err := url.Parse(c.from)
		if err != nil {
			t.Fatal(err)
		}
		to, err := url.Parse(c.to)
		if err != nil {
			t.Fatal(err)
		}
		if got := originOf(from).covers(originOf(to)); got != c.covers {
			t.Errorf("%s covers %s: %v", c.from, c.to, got)
		}
	}
}

func TestPace(t *testing.T) {
	const window, rate = 10 * time.Second, 1000
	type read struct {
		n    int
		took time.Duration
	}
	for name, c := range map[string]struct {
		reads []read
		slow  bool
	}{
		"fast":                       {[]read{{1 << 20, time.Second}, {1 << 20, time.Second}}, false},
		"slow, but not for long":     {[]read{{1, 9 * time.Second}}, false},
		"drips":                      {[]read{{1, 5 * time.Second}, {1, 6 * time.Second}}, true},
		"just enough":                {[]read{{5000, 5 * time.Second}, {5000, 5 * time.Second}}, false},
		"drips after a fast start":   {[]read{{1 << 30, 10 * time.Second}, {1, 10 * time.Second}}, true},
		"pauses between fast phases": {[]read{{1, 9 * time.Second}, {20_000, time.Second}, {1, 9 * time.Second}, {20_000, time.Second}}, false},
	} {
		var p pace
		slow := false
		for _, r := range c.reads {
			slow = slow || p.tooSlow(r.n, r.took, window, rate)
		}
		if slow != c.slow {
			t.Errorf("%s: slow %v", name, slow)
		}
		if (&pace{}).tooSlow(0, time.Hour, window, -1) {
			t.Errorf("%s: there is no rate", name)
		}
	}
}

func TestBodyIsCutAtItsBound(t *testing.T) {
	for size, works := range map[int]bool{0: true, 9: true, 10: true, 11: false, 100: false} {
		b := &boundedBody{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, size))), limit: 10, left: 10}
		got, err := io.ReadAll(b)
		if works && (err != nil || len(got) != size) || !works && (!bounds.IsBeyond(err) || len(got) > 10) {
			t.Errorf("%d bytes: %d, %v", size, len(got), err)
		}
		if _, err := b.Read(make([]byte, 1)); works != errors.Is(err, io.EOF) {
			t.Errorf("%d bytes: after the end %v", size, err)
		}
	}
}

// Who has configured a registry is told what is odd about it.
func TestAdviceOnConfiguration(t *testing.T) {
	dir := t.TempDir()
	hosts := filepath.Join(dir, "localhost:5000")
	err := os.Mkdir(hosts, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte("server = \"http://localhost:5000\"\nskip_verify = true\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	logger := &logrus.Logger{Out: &text, Formatter: &logrus.JSONFormatter{}, Hooks: logrus.LevelHooks{}, Level: log.InfoLevel}
	ctx := log.WithLogger(t.Context(), logrus.NewEntry(logger))
	if _, err := configured(ctx, config.HostOptions{HostDir: config.HostDirFromRoot(dir)})("localhost:5000"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "TLS") {
		t.Errorf("the log has\n%s", text.String())
	}
}
