package installer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/kubeletconf"
)

// Beside is the other CRI daemon of the node.
type Beside struct {
	Endpoint string   `json:"endpoint"`
	Handlers []string `json:"handlers"`
	// CgroupDriver is the cgroup driver of the daemon and the kubelet; empty means unknown.
	CgroupDriver string `json:"cgroupDriver,omitempty"`
}

// queryBackend queries the other daemon. Its endpoint is the desired one, else that of the last
// healthy version, else the kubelet's without the drop-in for berth.
func (r *run) queryBackend(ctx context.Context, k kubeletconf.Kubelet) (Beside, error) {
	last := r.st.Healthy.Beside
	endpoint := cmp.Or(r.w.Endpoint, last.Endpoint)
	if endpoint == "" {
		if r.st.Kubelet != "" {
			k = k.WithoutDropIn()
		}
		endpoint = k.Endpoint()
	}
	if endpoint == "" {
		return last, k.CheckMovable() // k3s runs its own containerd
	}
	endpoint = kubeletconf.AsURL(endpoint)
	if kubeletconf.IsBerth(endpoint) {
		return last, errors.New("the kubelet already uses a berth that this installer did not install")
	}
	var b Beside
	waits := false
	err := eventually(ctx, r.patience, func() (err error) {
		if b, err = r.Backend.Ask(ctx, endpoint); err != nil && !waits {
			log.G(ctx).WithField("endpoint", endpoint).Info("Waiting for the other CRI daemon")
			waits = true
		}
		return err
	})
	if err != nil && last.Endpoint == endpoint {
		// The daemon may have been stopped permanently, at the end of a migration.
		log.G(ctx).WithError(err).WithField("endpoint", endpoint).Warn("Failed to query the other CRI daemon; keeping its last known handlers")
		return last, nil
	}
	if err != nil {
		return b, fmt.Errorf("ask the CRI daemon at %s for its handlers: %w; start it, or set another endpoint", endpoint, err)
	}
	b.Endpoint = endpoint
	return b, nil
}

// name returns the name of the handler that forwards to the daemon's default handler.
func (b Beside) name() string {
	if strings.Contains(b.Endpoint, "crio") {
		return "crio"
	}
	return "containerd"
}
