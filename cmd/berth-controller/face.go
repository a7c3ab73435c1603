package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/tools/leaderelection"
)

// face is what others see of a controller: its metrics, and whether it lives.
type face struct {
	registry *prometheus.Registry
	// lease fails when this controller holds the lease and has not renewed it.
	lease *leaderelection.HealthzAdaptor
}

func newFace() *face {
	f := &face{registry: prometheus.NewRegistry(), lease: leaderelection.NewLeaderHealthzAdaptor(leaseDuration)}
	f.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return f
}

// serve listens until closed is called; at no address it does nothing. It is ready from
// then on: one that waits for the lease is, too, or an upgrade would wait for it.
func (f *face) serve(ctx context.Context, address string) (closed func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--address=%s: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(f.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := f.lease.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.G(ctx).WithError(err).WithField("address", address).Error("Failed to serve metrics")
		}
	}()
	return func() { _ = server.Close() }, nil // who asks is not waited for
}
