// Package scrape serves metrics to Prometheus.
package scrape

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

// NewRegistry returns a registry with the metrics of the process: its resources, Go's runtime and
// the build.
func NewRegistry(version, revision string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "berth_build_info",
		Help:        "Always 1; the labels describe the build.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision},
	})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Page is served beside /metrics.
type Page struct {
	Path    string
	Handler http.HandlerFunc
}

// maxConnections bounds the connected clients; further clients wait.
const maxConnections = 64

// Endpoint serves /metrics, and pages beside it.
type Endpoint struct {
	server *http.Server
	done   chan struct{}
}

// Serve serves a registry's metrics at /metrics, and pages, on l, which Close closes. It has no
// access control: on a node, listen on loopback, or on a unix socket.
func Serve(ctx context.Context, l net.Listener, g prometheus.Gatherer, pages ...Page) *Endpoint {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	for _, p := range pages {
		mux.Handle("GET "+p.Path, p.Handler)
	}
	e := &Endpoint{
		server: &http.Server{
			Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 1 << 14,
		},
		done: make(chan struct{}),
	}
	go e.serve(ctx, l)
	return e
}

// serve runs until Close. It only logs an error: pods are served without metrics, too.
func (e *Endpoint) serve(ctx context.Context, l net.Listener) {
	defer close(e.done)
	if err := e.server.Serve(netutil.LimitListener(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
		log.G(ctx).WithError(err).Error("Metrics endpoint failed")
	}
}

// Close waits for running requests until ctx ends.
func (e *Endpoint) Close(ctx context.Context) error {
	err := e.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, e.server.Close())
	}
	<-e.done
	return err
}
