package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/pkg/observe/scrape"
)

// closeGrace is how long the end waits for who reads metrics.
const closeGrace = time.Second

// serve says at an address what registry has, and whether this controller lives: not if it
// holds the lease and has not renewed it. It is ready also if it waits for the lease, or an
// upgrade would wait for it. At no address it does nothing.
func serve(ctx context.Context, address string, registry prometheus.Gatherer, lease *leaderelection.HealthzAdaptor, ready func() bool) (closed func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, commandline.Wrong(fmt.Errorf("--address=%s: %w; write [HOST]:PORT", address, err))
	}
	endpoint := scrape.Serve(ctx, l, registry,
		scrape.Page{Path: "/readyz", Handler: func(w http.ResponseWriter, _ *http.Request) {
			if !ready() {
				http.Error(w, "the API server has not shown the lease yet", http.StatusServiceUnavailable)
				return
			}
			w.WriteHeader(http.StatusOK)
		}},
		scrape.Page{Path: "/healthz", Handler: func(w http.ResponseWriter, r *http.Request) {
			if err := lease.Check(r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		}})
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		_ = endpoint.Close(ctx) // who still reads then is cut off
	}, nil
}
