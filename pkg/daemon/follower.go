package daemon

import (
	"context"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/remote"
)

// follow has handlers probed whose CRI daemon came, went or changed. Each backend is
// followed apart, so that one whose handlers take long to probe keeps no other waiting.
func (r *remotes) follow(handlers *lifecycle.Manager) {
	r.handlers = handlers
	close(r.following)
}

// one takes over what has changed of a backend, until it has left.
func (r *remotes) one(b *remote.Backend, wake <-chan struct{}) {
	select {
	case <-r.life.Done():
		return
	case <-r.following:
	}
	var probed *remote.Health
	for r.stays(b) {
		select {
		case <-r.life.Done():
			return
		case <-wake:
			probed = r.takeOver(r.life, b, probed)
		}
	}
}

// stays says whether b is in the pool, and ends what follows it if not.
func (r *remotes) stays(b *remote.Backend) bool {
	if r.pool.Has(b) {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.wakes, b)
	return false
}

// takeOver makes owners what the daemon has, and has its handlers probed if its
// health is not what it was when they were probed last, which it returns.
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

// same says whether a daemon is as it was all the time: one that went and came back
// meanwhile may have been probed while it was away. Pure.
func same(before, now remote.Health) bool {
	return before.Phase == now.Phase && before.Reason == now.Reason && before.Since.Equal(now.Since)
}
