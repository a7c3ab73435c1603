package network

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
)

// Status returns nil if pods can be connected, else errdefs.ErrUnavailable and the reason. It
// answers from memory. At most once a second it starts a check of the configuration directory in
// the background and waits up to 100 ms for it, so that a configuration that was just installed is
// used at once. A disk or plugin that hangs delays a caller by no more than that.
//
// For configurations of CNI 1.1 and later it also sends the verb STATUS: every 30 seconds while
// that succeeds, else after each check.
func (p *Plugins) Status() error { return p.health.status() }

// Ready is Status, but waits up to firstTimeout for the first check since the daemon started.
func (p *Plugins) Ready(ctx context.Context) error { return p.health.ready(ctx) }

// checkNode reads the configuration, and repairs what other programs did to the masquerading. One
// call runs at a time.
func (p *Plugins) checkNode(ctx context.Context) error {
	err := p.masquerade.Repair()
	if err != nil && (p.unrepaired == nil || p.unrepaired.Error() != err.Error()) {
		log.G(ctx).WithError(err).Warn("Failed to restore the masquerading of pods; will retry")
	}
	p.unrepaired = err
	_, err = p.networks(ctx, "")
	return err
}

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

// hasVerbs reports whether a network's configuration is of CNI 1.1 or later, with STATUS and GC.
func hasVerbs(list *libcni.NetworkConfigList) bool {
	ok, err := version.GreaterThanOrEqualTo(list.CNIVersion, "1.1.0")
	return err == nil && ok
}

// Intervals and timeouts of health. See Status.
const (
	checkInterval = time.Second
	askInterval   = 30 * time.Second
	askTimeout    = 10 * time.Second
	checkWait     = 100 * time.Millisecond
	firstTimeout  = 10 * time.Second
)

// health caches the node's state and renews it on demand.
type health struct {
	check func(context.Context) error
	ask   func(context.Context) error // runs plugins

	mu          sync.Mutex    // guards the fields below; never held during I/O
	checking    chan struct{} // closed at the end of a running check
	asking      bool
	checked     time.Time
	asked       time.Time
	checkedOnce bool
	checkErr    error
	askErr      error
}

// ready waits up to firstTimeout for the first check.
func (h *health) ready(ctx context.Context) error {
	h.mu.Lock()
	known := h.checkedOnce
	h.mu.Unlock()
	if known {
		return h.status()
	}
	return h.statusWithin(ctx, firstTimeout)
}

func (h *health) status() error { return h.statusWithin(context.Background(), checkWait) }

func (h *health) statusWithin(ctx context.Context, wait time.Duration) error {
	if look := h.startCheck(); look != nil {
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
	case !h.checkedOnce:
		return errdefs.ErrUnavailable.WithMessage("cni plugin not initialized: its configuration is still being read")
	case h.checkErr != nil:
		return h.checkErr
	default:
		return h.askErr
	}
}

// startCheck starts a check if one is due, and returns a channel that closes when it ends.
func (h *health) startCheck() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.checking == nil && time.Since(h.checked) >= checkInterval {
		h.checking = make(chan struct{})
		go h.runCheck(h.checking)
	}
	return h.checking
}

// runCheck has no timeout. At most one runs, so that a disk that hangs blocks only one goroutine.
func (h *health) runCheck(done chan struct{}) {
	err := h.check(context.Background())
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checkedOnce, h.checkErr, h.checked = true, err, time.Now()
	h.checking = nil
	close(done)
	if err != nil {
		h.askErr = nil // it belongs to an earlier configuration
		return
	}
	if !h.asking && (h.askErr != nil || time.Since(h.asked) >= askInterval) {
		h.asking = true
		go h.runAsk()
	}
}

// runAsk ends after askTimeout. The next Status returns its result.
func (h *health) runAsk() {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	err := h.ask(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asking, h.asked, h.askErr = false, time.Now(), err
}
