// Package dashboard renders contrib/grafana/berth.json in a browser, from data that a real
// Prometheus has scraped from a real berth. "make dashboard" runs the test, which needs Chromium,
// Prometheus and npm.
package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

const (
	dashboardFile = "../../contrib/grafana/berth.json"
	// scrape is the interval of Prometheus, and rate the value of $__rate_interval. Grafana would use
	// four times the interval, in which too few pods start for a rate.
	scrape, rate = "1s", "15s"
)

// withData are the IDs of panels that have data from this test's node, where pods start and stop,
// a start fails and the configuration is reloaded.
var withData = []int{2, 3, 4, 5, 41, 42, 43, 44, 7, 8, 13, 14, 16, 18, 19, 20, 21, 22, 61}

// pictured are the IDs of the panels in the picture of docs/metrics.md.
var pictured = []int{2, 3, 5, 41, 7, 8, 18, 20}

// result is what the page reports about the panels that it has drawn.
type result struct {
	Panels []struct {
		ID     int
		Title  string
		Series int
		Error  string
	}
	Plots int
	Error string
}

func TestDashboard(t *testing.T) {
	bundle := os.Getenv("BERTH_TEST_DASHBOARD")
	if bundle == "" {
		t.Skip("make dashboard builds what this needs, and runs it")
	}
	var programs [2]string
	for i, name := range []string{"chromium", "prometheus"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatalf("%v; apt-get install chromium prometheus", err)
		}
		programs[i] = path
	}
	metrics := freePort(t)
	bed := testbed.StartBed(t, "dashboard/busybox:1", testbed.Options{
		Runtimes:       map[string]string{"runc": testbed.Part(t, testbed.Runc), "crun": testbed.Part(t, testbed.Crun), "gvisor": testbed.Part(t, testbed.Runsc)},
		DefaultRuntime: "runc",
		Config:         fmt.Sprintf("[metrics]\naddress = %q\n", metrics),
	})
	began := time.Now()
	prometheus := startPrometheus(t, programs[1], metrics)
	work(t, bed)
	s := &server{bundle: bundle, prometheus: prometheus, results: make(chan result, 1)}
	// All starts must have been scraped.
	testbed.Eventually(t, time.Minute, func() error { return prometheus.scraped(began) })
	s.seconds = int(time.Since(began).Seconds())

	picture := filepath.Join(bundle, "dashboard.png")
	got := s.draw(t, programs[0], nil, filepath.Join(bundle, "all.png"), 1600, 4100)
	testbed.MustBe(t, got.Error, "", "the error of the page is")
	if want := panels(t); len(got.Panels) != want {
		t.Errorf("the page drew %d panels, the dashboard has %d", len(got.Panels), want)
	}
	plots := 0
	for _, p := range got.Panels {
		testbed.Same(t, p.Error, "", "the error of panel %d, %q, is", p.ID, p.Title)
		if p.Series == 0 && slices.Contains(withData, p.ID) {
			t.Errorf("panel %d, %q, has no data", p.ID, p.Title)
		}
		if p.Series > 0 {
			plots++
		}
	}
	if got.Plots != plots {
		t.Errorf("the page drew %d plots, but %d panels have data", got.Plots, plots)
	}
	testbed.Same(t, s.draw(t, programs[0], pictured, picture, 1200, 968).Plots, len(pictured), "the number of plots in the picture is")
	for _, p := range []string{picture, filepath.Join(bundle, "all.png")} {
		if body, err := os.ReadFile(p); err != nil || !bytes.HasPrefix(body, []byte("\x89PNG")) {
			t.Errorf("%s is not a PNG: %v", p, err)
		}
	}
	t.Logf("the picture is %s", picture)
}

// panels returns the number of panels of the dashboard.
func panels(t *testing.T) (n int) {
	t.Helper()
	text, err := os.ReadFile(dashboardFile)
	testbed.Must(t, err)
	var d struct{ Panels []struct{ Type string } }
	testbed.Must(t, json.Unmarshal(text, &d))
	for _, p := range d.Panels {
		if p.Type != "row" {
			n++
		}
	}
	return n
}

// work starts and stops pods of all handlers, has one refused by a cordoned handler, and reloads
// the configuration.
func work(t *testing.T, bed *testbed.Bed) {
	t.Helper()
	berth := func(arguments ...string) {
		c := exec.CommandContext(t.Context(), filepath.Join(bed.Bin, "berth"), arguments...)
		c.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+filepath.Join(filepath.Dir(bed.Socket), "admin.sock"))
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("berth %s: %v: %s", strings.Join(arguments, " "), err, out)
		}
	}
	handlers := []string{"runc", "crun", "gvisor"}
	var pods []*testbed.Pod
	for i := range 24 {
		handler := handlers[i%3]
		bed.Client.Pull(t, handler, bed.Image)
		pods = append(pods, bed.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: bed.Image, Command: []string{"sleep", "600"}}))
		switch {
		case i == 8:
			berth("handler", "cordon", "crun", "--reason", "disk is being replaced")
			_, err := bed.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: bed.Client.SandboxConfig(""), RuntimeHandler: "crun"})
			if err == nil {
				t.Fatal("a cordoned handler accepts pods")
			}
			time.Sleep(5 * time.Second)
		case i == 9:
			berth("handler", "uncordon", "crun")
			berth("reload", "--wait")
		case i%4 == 3:
			pods[0].Stop(t)
			pods[0].Remove(t)
			pods = pods[1:]
		}
		time.Sleep(1500 * time.Millisecond) // the graphs need a longer time than the pods
	}
}

// prom is a running Prometheus.
type prom struct{ url *url.URL }

func startPrometheus(t *testing.T, program, target string) *prom {
	t.Helper()
	dir, address := t.TempDir(), freePort(t)
	config := fmt.Sprintf("global: {scrape_interval: %s}\nscrape_configs: [{job_name: berth, static_configs: [{targets: [%q]}]}]\n", scrape, target)
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	var said bytes.Buffer
	c := exec.CommandContext(t.Context(), program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	c.Stdout, c.Stderr = &said, &said
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	testbed.Must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Wait()
		if t.Failed() {
			t.Logf("prometheus: %s", said.String())
		}
	})
	p := &prom{&url.URL{Scheme: "http", Host: address}}
	testbed.Eventually(t, time.Minute, func() error {
		n, err := p.value(`count(up{job="berth"} == 1)`)
		if err == nil && n == "" {
			return fmt.Errorf("Prometheus has not scraped berth yet")
		}
		return err
	})
	return p
}

// value returns the value of a query with one result, or an empty string without a result.
func (p *prom) value(query string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url.String()+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct{ Result []struct{ Value [2]any } }
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Error != "" || len(answer.Data.Result) == 0 {
		return "", err
	}
	return fmt.Sprint(answer.Data.Result[0].Value[1]), nil
}

// scraped returns an error until Prometheus has all 24 starts.
func (p *prom) scraped(began time.Time) error {
	n, err := p.value(`sum(berth_rpc_duration_seconds_count{rpc="RunPodSandbox", code="OK"})`)
	if err == nil && n != "24" {
		return fmt.Errorf("Prometheus has %s of 24 starts after %s", n, time.Since(began))
	}
	return err
}

// server serves the page, the dashboard and Prometheus's API, and receives the result.
type server struct {
	bundle     string
	prometheus *prom
	seconds    int
	results    chan result
}

// draw has the browser draw the panels with these IDs, or all without IDs, into a picture.
func (s *server) draw(t *testing.T, browser string, ids []int, picture string, width, height int) result {
	t.Helper()
	if ids == nil {
		ids = []int{}
	}
	settings, err := json.Marshal(map[string]any{"seconds": s.seconds, "step": scrape, "rate": rate, "panels": ids})
	testbed.Must(t, err)
	mux := http.NewServeMux()
	page := `<!doctype html><meta charset="utf-8"><title>berth</title><link rel="stylesheet" href="/page.css"><style>body{margin:0}</style>` +
		`<div id="root"></div><script>window.settings=` + string(settings) + `</script><script type="module" src="/page.js"></script>`
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page) })
	mux.Handle("GET /page.js", http.FileServer(http.Dir(s.bundle)))
	mux.Handle("GET /page.css", http.FileServer(http.Dir(s.bundle)))
	mux.HandleFunc("GET /dashboard.json", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, dashboardFile) })
	mux.Handle("GET /api/", httputil.NewSingleHostReverseProxy(s.prometheus.url))
	mux.HandleFunc("POST /result", func(_ http.ResponseWriter, r *http.Request) {
		var got result
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			got.Error = err.Error()
		}
		select {
		case s.results <- got:
		default: // only the first result counts
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	h := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go h.Serve(listener) //nolint:errcheck // ends with the test
	defer func() { _ = h.Close() }()
	home := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// The browser's virtual time does not advance while the browser waits for the network.
	c := exec.CommandContext(ctx, browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--user-data-dir="+home, "--virtual-time-budget=20000", fmt.Sprintf("--window-size=%d,%d", width, height), "--screenshot="+picture, "http://"+listener.Addr().String()+"/")
	c.Env = append(os.Environ(), "HOME="+home)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	select {
	case got := <-s.results:
		return got
	default:
		t.Fatalf("the page posted no result: %s", out)
		return result{}
	}
}

// freePort returns an address whose port is free.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer listener.Close()
	return listener.Addr().String()
}
