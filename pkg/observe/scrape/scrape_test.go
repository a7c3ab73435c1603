package scrape

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/internal/test"
)

// fetch returns the response of an endpoint.
func fetch(t *testing.T, method, url string) (code int, body string, err error) {
	t.Helper()
	req := test.Value(http.NewRequestWithContext(t.Context(), method, url, http.NoBody))(t)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

func TestEndpoint(t *testing.T) {
	l := test.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	e := Serve(t.Context(), l, NewRegistry("1.2.3", "abc"))
	at := "http://" + l.Addr().String()
	for _, tc := range []struct {
		method, path string
		code         int
		body         string
	}{
		{http.MethodGet, "/metrics", http.StatusOK, `berth_build_info{revision="abc",version="1.2.3"} 1`},
		{http.MethodGet, "/", http.StatusNotFound, ""},
		{http.MethodGet, "/debug/pprof/", http.StatusNotFound, ""},
		{http.MethodPost, "/metrics", http.StatusMethodNotAllowed, ""},
	} {
		code, body, err := fetch(t, tc.method, at+tc.path)
		if err != nil || code != tc.code || !strings.Contains(body, tc.body) {
			t.Errorf("%s %s: %d, %v\n%s", tc.method, tc.path, code, err, body)
		}
	}
	test.Check(t, e.Close(t.Context()))
	if _, _, err := fetch(t, http.MethodGet, at+"/metrics"); err == nil {
		t.Error("the endpoint responds after Close")
	}
}

// A request that never ends must not delay the stop of the daemon.
func TestEndpointClosesOnTime(t *testing.T) {
	l := test.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	asked, release := make(chan struct{}), make(chan struct{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slow"}, func() float64 {
		close(asked)
		<-release
		return 0
	}))
	e := Serve(t.Context(), l, registry)
	var fetching sync.WaitGroup
	fetching.Go(func() {
		if _, _, err := fetch(t, http.MethodGet, "http://"+l.Addr().String()+"/metrics"); err == nil {
			t.Error("the request was answered")
		}
	})
	<-asked
	over, cancel := context.WithCancel(t.Context())
	cancel()
	test.ErrorIs(t, e.Close(over), context.Canceled, "Close")
	fetching.Wait()
	close(release)
}
