package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"github.com/berth-cri/berth/internal/test"
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
		from := test.Value(url.Parse(c.from))(t)
		to := test.Value(url.Parse(c.to))(t)
		test.Equal(t, fmt.Sprintf("%s covers %s", c.from, c.to), originOf(from).covers(originOf(to)), c.covers)
	}
}

func TestPace(t *testing.T) {
	const window, rate = 10 * time.Second, 1000
	type read struct {
		at, until time.Duration
		n         int
	}
	for name, c := range map[string]struct {
		reads []read // in the order in which they end
		slow  bool
	}{
		"fast":                               {[]read{{0, time.Second, 1 << 20}, {time.Second, 2 * time.Second, 1 << 20}}, false},
		"slow, but not for long":             {[]read{{0, 9 * time.Second, 1}}, false},
		"slow for the whole window":          {[]read{{0, 5 * time.Second, 1}, {5 * time.Second, 11 * time.Second, 1}}, true},
		"just enough":                        {[]read{{0, 5 * time.Second, 5000}, {5 * time.Second, 10 * time.Second, 5000}}, false},
		"slow after a fast window":           {[]read{{0, 10 * time.Second, 1 << 30}, {10 * time.Second, 20 * time.Second, 1}}, true},
		"slow and fast reads in each window": {[]read{{0, 9 * time.Second, 1}, {9 * time.Second, 10 * time.Second, 20_000}, {10 * time.Second, 19 * time.Second, 1}, {19 * time.Second, 20 * time.Second, 20_000}}, false},
		"pause without a waiting reader":     {[]read{{0, time.Second, 1}, {time.Hour, time.Hour + time.Second, 1}}, false},
		"parallel parts that are all slow":   {[]read{{0, 4 * time.Second, 1}, {0, 4 * time.Second, 1}, {4 * time.Second, 11 * time.Second, 1}, {4 * time.Second, 11 * time.Second, 1}}, true},
		// Each part alone is below the rate.
		"parallel parts that are fast enough together": {[]read{{0, 9 * time.Second, 5000}, {0, 10 * time.Second, 5000}}, false},
		"slow parts one after the other":               {[]read{{0, 6 * time.Second, 1}, {6 * time.Second, 12 * time.Second, 1}}, true},
	} {
		for _, limit := range []int64{rate, -1} {
			var p pace
			start, slow, last := time.Now(), false, 0
			for i, r := range c.reads {
				for ; last < len(c.reads) && (last <= i || c.reads[last].at < r.until); last++ {
					p.wait(start.Add(c.reads[last].at))
				}
				slow = p.tooSlow(r.n, start.Add(r.until), window, limit)
			}
			test.Equal(t, fmt.Sprintf("%s, minimum rate %d: too slow", name, limit), slow, c.slow && limit > 0)
		}
	}
}

func TestBodyIsCutAtItsBound(t *testing.T) {
	for size, works := range map[int]bool{0: true, 9: true, 10: true, 11: false, 100: false} {
		b := &boundedBody{ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, size))), limit: 10, left: 10}
		got, err := io.ReadAll(b)
		if works && (err != nil || len(got) != size) || !works && (!bounds.IsBeyond(err) || len(got) > 10) {
			t.Errorf("body of %d bytes: read %d, %v", size, len(got), err)
		}
		if _, err := b.Read(make([]byte, 1)); works != errors.Is(err, io.EOF) {
			t.Errorf("body of %d bytes: a read after the end returns %v", size, err)
		}
	}
}

type answering string

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(a))), Request: r}, nil
}

// Progress counts the bytes of answers. An answer without a body does not count.
func TestProgressOfAnswers(t *testing.T) {
	p := &Progress{}
	w := &wire{progress: p, limits: bounds.Limits{}.Complete()}
	for _, body := range []answering{"", "five!", ""} {
		resp, err := w.tokens(body).RoundTrip(test.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://r/token", http.NoBody))(t))
		test.Must(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		test.Must(t, errors.Join(err, resp.Body.Close()))
	}
	test.Equal(t, "bytes", p.Bytes(), 5)
}

// The log advises on a hosts.toml whose TLS options do not fit together.
func TestAdviceOnConfiguration(t *testing.T) {
	dir := t.TempDir()
	hosts := filepath.Join(dir, "localhost:5000")
	err := os.Mkdir(hosts, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte("server = \"http://localhost:5000\"\nskip_verify = true\n"), 0o600)
	}
	test.Must(t, err)
	var text bytes.Buffer
	logger := &logrus.Logger{Out: &text, Formatter: &logrus.JSONFormatter{}, Hooks: logrus.LevelHooks{}, Level: log.InfoLevel}
	ctx := log.WithLogger(t.Context(), logrus.NewEntry(logger))
	test.Must(t, test.Err(configured(ctx, config.HostOptions{HostDir: config.HostDirFromRoot(dir)})("localhost:5000")))
	if !strings.Contains(text.String(), "TLS") {
		t.Errorf("the log has no advice on TLS:\n%s", text.String())
	}
}
