// Package scrape serves what Prometheus asks a program for.
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

// NewRegistry makes a registry that has what is said about the process as a
// whole: its resources, Go's runtime, and which build it is.
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

// Page is what an endpoint serves beside /metrics.
type Page struct {
	Path    string
	Handler http.HandlerFunc
}

// maxConnections is how many clients may be connected; more wait.
const maxConnections = 64

// Endpoint serves /metrics, and pages beside it.
type Endpoint struct {
	server *http.Server
	done   chan struct{}
}

// Serve serves a registry's metrics at /metrics on l, which it closes in the end, and
// pages. It has no access control: on a node, listen on loopback, or on a unix socket.
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

// serve ends with Close. Losing the metrics is no reason to stop serving pods.
func (e *Endpoint) serve(ctx context.Context, l net.Listener) {
	defer close(e.done)
	if err := e.server.Serve(netutil.LimitListener(l, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
		log.G(ctx).WithError(err).Error("Metrics endpoint failed")
	}
}

// Close lets requests end for as long as ctx allows.
func (e *Endpoint) Close(ctx context.Context) error {
	err := e.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, e.server.Close())
	}
	<-e.done
	return err
}
