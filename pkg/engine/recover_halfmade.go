package engine

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cri/berth/pkg/engine/store"
)

// undoPatience is how long a start waits for half-made sandboxes to be undone.
// Those that take longer are listed NOTREADY and are undone beside the calls.
const undoPatience = 5 * time.Second

// dropHalfMade takes back objects whose creation never ended, and containers
// whose sandbox is gone.
func (r recovery) dropHalfMade(ctx context.Context) {
	k := r.core
	g := errgroup.Group{}
	g.SetLimit(recoveryParallel)
	for _, o := range k.ctrs.List() {
		if _, err := k.objects.container(o.ID()); err == nil {
			continue
		}
		if p, ok := k.pods.Get(o.Spec().Sandbox); ok && r.silent.has(runner(newSandbox(p))) {
			go r.dropContainer(k.background, o, undoTimeout)
			continue
		}
		g.Go(func() error { r.dropContainer(ctx, o, recoveryAnswer); return nil })
	}
	_ = g.Wait()
	var quick, slow []*halfMade
	for _, o := range k.pods.List() {
		if o.Status().Phase != phasePlanned {
			continue
		}
		s := newSandbox(o)
		if err := k.names.reserve(sandboxName(s.config().GetMetadata()), s.ID()); err != nil {
			log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Warn("two sandboxes have one name")
		}
		s.op <- struct{}{} // whoever wants to remove it waits
		if h := (&halfMade{sandbox: s}); r.silent.has(runner(s)) {
			slow = append(slow, h)
		} else {
			quick = append(quick, h)
		}
	}
	r.undo(quick, undoPatience)
	r.undo(slow, 0)
}

// halfMade is a sandbox that is being undone.
type halfMade struct {
	*sandbox
	mu    sync.Mutex
	shown bool // guarded by mu: it is listed, and stays until it is removed
}

// undo takes sandboxes back, and waits no longer than patience before it shows
// what is left of them.
func (r recovery) undo(all []*halfMade, patience time.Duration) {
	if len(all) == 0 {
		return
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g := errgroup.Group{}
		g.SetLimit(recoveryParallel)
		for _, h := range all {
			g.Go(func() error { r.takeBack(h); return nil })
		}
		_ = g.Wait()
	}()
	enough := time.NewTimer(patience)
	defer enough.Stop()
	select {
	case <-ended:
	case <-enough.C:
		for _, h := range all {
			r.show(h)
		}
	}
}

// show lists h unless it is gone.
func (r recovery) show(h *halfMade) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, there := r.core.pods.Get(h.ID()); there && !h.shown {
		h.shown = true
		r.core.objects.addSandbox(h.sandbox)
	}
}

// takeBack undoes h. One that was listed meanwhile stays so, with nothing in it:
// the kubelet has seen it and removes it. So does one that cannot be undone.
func (r recovery) takeBack(h *halfMade) {
	defer h.op.unlock()
	ctx, cancel := context.WithTimeout(r.core.background, undoTimeout)
	defer cancel()
	b := r.Engine.sandboxes
	err := b.tearDown(ctx, h.sandbox)
	if r.core.background.Err() != nil {
		return // the next start does it again
	}
	h.mu.Lock()
	if err == nil && !h.shown {
		if err = b.forget(h.sandbox); err == nil {
			h.mu.Unlock()
			return
		}
	}
	h.mu.Unlock()
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", h.ID()).Error("a half-made sandbox could not be taken back; it is listed as not ready")
	}
	h.force(ctx, func(st *sandboxStatus) { st.Phase, st.Stopped = phaseStopped, err == nil })
	r.show(h)
}

// dropContainer takes back a container that was never shown. What fails is tried
// again by the next start.
func (r recovery) dropContainer(ctx context.Context, o *store.Object[containerSpec, containerStatus], patience time.Duration) {
	if err := r.tryDropContainer(ctx, o, patience); err != nil {
		log.G(ctx).WithError(err).WithField("container", o.ID()).Error("take back a half-made container")
	}
}

func (r recovery) tryDropContainer(ctx context.Context, o *store.Object[containerSpec, containerStatus], patience time.Duration) error {
	b := r.Engine.containers
	if p, ok := r.core.pods.Get(o.Spec().Sandbox); ok {
		c := newContainer(o, newSandbox(p))
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := b.eraseTask(ctx, c); err != nil && ctx.Err() != nil {
			return err // who may yet come back would never let go of it
		} else if err != nil {
			log.G(ctx).WithError(err).WithField("container", o.ID()).Warn("clean up after a half-made container")
		}
	}
	if err := b.removeParts(ctx, newContainer(o, nil)); err != nil {
		return err
	}
	return r.core.ctrs.Delete(o.ID())
}
