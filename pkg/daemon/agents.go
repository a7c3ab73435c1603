package daemon

import (
	"context"
	"fmt"
	"net"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/observe"
)

// listenForAgents listens on the socket of the containerd API, if configured. It detects another
// daemon on the socket before anything on disk is opened. A client that imports images controls the
// node, so only the socket's owner may connect.
func (d *Daemon) listenForAgents(ctx context.Context) (net.Listener, error) {
	path := d.options.Config.ContainerdAPI.Socket
	if path == "" {
		return nil, nil
	}
	l, err := d.listenFor(ctx, "containerd API socket", path, ownerOnly, "")
	if err != nil {
		return nil, fmt.Errorf("containerd_api.socket: %w", err)
	}
	return l, nil
}

// serveAgents serves the containerd API on l. Running calls end with the daemon.
func (d *Daemon) serveAgents(ctx context.Context, e Engine, l net.Listener, metrics prometheus.Registerer) {
	if l == nil {
		return
	}
	options := observe.NewContainerd(metrics).ServerOptions()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	d.teardown.add("containerd API", func(ctx context.Context) error {
		stop()
		select {
		case <-ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	go func() {
		defer close(ended)
		if err := e.ServeContainerdAPI(serving, l, options...); err != nil {
			// The node's pods do not need this API.
			log.G(ctx).WithError(err).Error("Failed to serve the containerd API")
		}
	}()
	log.G(ctx).WithField("socket", d.options.Config.ContainerdAPI.Socket).Info("Serving the containerd API")
}
