package daemon

import (
	"context"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/remote"
)

// follower has handlers probed whose CRI daemon came, went or changed.
type follower struct {
	*remotes
	handlers *lifecycle.Manager
}

// run follows each backend apart, so that one whose handlers take long to probe keeps no
// other waiting.
func (f *follower) run() {
	followed := map[<-chan struct{}]bool{}
	for {
		select {
		case <-f.life.Done():
			return
		case <-f.news:
		}
		now := map[<-chan struct{}]bool{}
		for b, wake := range f.woken() {
			now[wake] = true
			if !followed[wake] {
				f.working.Go(func() { f.one(b, wake) })
			}
		}
		followed = now
	}
}

func (r *remotes) woken() map[*remote.Backend]<-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[*remote.Backend]<-chan struct{}, len(r.wakes))
	for b, wake := range r.wakes {
		all[b] = wake
	}
	return all
}

// one takes over what has changed of a backend, until it has left.
func (f *follower) one(b *remote.Backend, wake <-chan struct{}) {
	var probed *remote.Health
	for f.stays(b) {
		select {
		case <-f.life.Done():
			return
		case <-wake:
			probed = f.takeOver(f.life, b, probed)
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
func (f *follower) takeOver(ctx context.Context, b *remote.Backend, before *remote.Health) *remote.Health {
	f.reconcile(ctx, b)
	now := b.Health()
	if before != nil && same(*before, now) {
		return before
	}
	for _, route := range f.registry.Current().Routes() {
		if d := route.Definition; d.Type == handler.CRI && route.Backend.ID() == b.ID() {
			if _, err := f.handlers.Probe(ctx, d.Name, probe.Ask); err != nil && ctx.Err() == nil {
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
