package network

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
)

// Status says whether pods can be connected: nil, or errdefs.ErrUnavailable and
// the reason. It answers from memory. At most once a second it has the
// directory looked at in the background, and gives that a moment, so that a
// configuration that was just installed counts at once; a disk or a plugin that
// hangs costs a caller no more than that moment.
//
// Configurations of CNI 1.1 and later are also asked by the verb STATUS: every
// half minute while all is well, else at each look.
func (p *Plugins) Status() error { return p.health.status() }

// Ready says the same to who has time: it waits, within bounds, for a configuration
// that has not been read once since the daemon started.
func (p *Plugins) Ready(ctx context.Context) error { return p.health.ready(ctx) }

// askNode sends the verb STATUS to the plugins of the node's configuration.
func (p *Plugins) askNode(ctx context.Context) error {
	lists, err := p.networks(ctx, "")
	if err != nil {
		return err
	}
	for _, list := range lists {
		if !hasVerbs(list) {
			continue
		}
		if err := p.cni.GetStatusNetworkList(ctx, list); err != nil {
			return bound(fmt.Errorf("%w: %w", errdefs.ErrUnavailable.WithMessage(
				fmt.Sprintf("network %q is not ready", list.Name)), err))
		}
	}
	return nil
}

// hasVerbs reports whether the plugins of a network know STATUS and GC.
func hasVerbs(list *libcni.NetworkConfigList) bool {
	ok, err := version.GreaterThanOrEqualTo(list.CNIVersion, "1.1.0")
	return err == nil && ok
}

// The pace of health. See Status.
const (
	lookInterval = time.Second
	askInterval  = 30 * time.Second
	askTimeout   = 10 * time.Second
	patience     = 100 * time.Millisecond
	firstTimeout = 10 * time.Second
)

// health remembers the node's state, and renews it while somebody asks for it.
type health struct {
	check func(context.Context) error // reads the configuration
	ask   func(context.Context) error // runs plugins

	mu       sync.Mutex    // guards what follows; never held while working
	looking  chan struct{} // closed at the end of a look that runs
	asking   bool
	looked   time.Time
	asked    time.Time
	known    bool
	checkErr error
	askErr   error
}

// ready waits longer for the first look.
func (h *health) ready(ctx context.Context) error {
	h.mu.Lock()
	known := h.known
	h.mu.Unlock()
	if known {
		return h.status()
	}
	return h.statusWithin(ctx, firstTimeout)
}

func (h *health) status() error { return h.statusWithin(context.Background(), patience) }

func (h *health) statusWithin(ctx context.Context, wait time.Duration) error {
	if look := h.look(); look != nil {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		select {
		case <-look:
		case <-ctx.Done():
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.known:
		return errdefs.ErrUnavailable.WithMessage("cni plugin not initialized: its configuration is still being read")
	case h.checkErr != nil:
		return h.checkErr
	default:
		return h.askErr
	}
}

// look starts a look if one is due, and returns what to wait for.
func (h *health) look() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.looking == nil && time.Since(h.looked) >= lookInterval {
		h.looking = make(chan struct{})
		go h.runLook(h.looking)
	}
	return h.looking
}

// runLook ends by itself. There is never more than one, so that a disk that
// hangs holds one goroutine.
func (h *health) runLook(done chan struct{}) {
	err := h.check(context.Background())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known, h.checkErr, h.looked = true, err, time.Now()
	h.looking = nil
	close(done)
	if err != nil {
		h.askErr = nil // of a configuration that is gone
		return
	}
	if !h.asking && (h.askErr != nil || time.Since(h.asked) >= askInterval) {
		h.asking = true
		go h.runAsk()
	}
}

// runAsk ends at askTimeout. Its answer counts from the next Status on.
func (h *health) runAsk() {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	err := h.ask(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asking, h.asked, h.askErr = false, time.Now(), err
}
