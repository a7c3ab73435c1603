package daemon

import (
	"context"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/remote"
)

// follow lets handlers be probed when their CRI daemon appears, disappears or changes. Each backend
// has its own goroutine, so that slow probes of one do not delay the others.
func (r *remotes) follow(handlers *lifecycle.Manager) {
	r.handlers = handlers
	close(r.following)
}

// followBackend applies the changes of a backend until it leaves the pool.
func (r *remotes) followBackend(b *remote.Backend, wake <-chan struct{}) {
	select {
	case <-r.life.Done():
		return
	case <-r.following:
	}
	var probed *remote.Health
	for r.inPool(b) {
		select {
		case <-r.life.Done():
			return
		case <-wake:
			probed = r.takeOver(r.life, b, probed)
		}
	}
}

// inPool reports whether b is in the pool, and removes its wake channel if not.
func (r *remotes) inPool(b *remote.Backend) bool {
	if r.pool.Has(b) {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.wakes, b)
	return false
}

// takeOver reconciles the router's owners with the backend's objects, and probes its handlers if
// its health has changed since their last probe. It returns the health at the last probe.
func (r *remotes) takeOver(ctx context.Context, b *remote.Backend, before *remote.Health) *remote.Health {
	r.reconcile(ctx, b)
	now := b.Health()
	if before != nil && same(*before, now) {
		return before
	}
	for _, route := range r.registry.Current().Routes() {
		if d := route.Definition; d.Type == handler.CRI && route.Backend.ID() == b.ID() {
			if _, err := r.handlers.Probe(ctx, d.Name, probe.Ask); err != nil && ctx.Err() == nil {
				log.G(ctx).WithError(err).WithField("handler", d.Name).Debug("Failed to probe handler")
			}
		}
	}
	return &now
}

// same reports whether a backend's health and the time of its last change are equal. With a new time
// the health differed in between, and a probe may have found that. Pure.
func same(before, now remote.Health) bool {
	return before.Phase == now.Phase && before.Reason == now.Reason && before.Since.Equal(now.Since)
}
