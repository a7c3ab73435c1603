package engine

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cri/berth/pkg/engine/reserve"
)

// undoPatience is how long a start waits for half-made sandboxes to be undone.
// Those that take longer are listed NOTREADY and are undone beside the calls.
const undoPatience = 5 * time.Second

// halfMades takes back what an earlier daemon had not made whole.
type halfMades struct {
	background context.Context // ends with the engine
	objects    *objects
	names      *reserve.Names
	labels     *reserve.Labels
	pods       *sandboxRecords
	ctrs       *containerRecords
	canaries   *canaries
	stops      *sandboxStops
	creation   *creation
	ends       *ends
	silent     *silence
}

// dropHalfMade takes back objects whose creation never ended, and containers
// whose sandbox is gone.
func (r *halfMades) dropHalfMade(ctx context.Context) {
	r.dropContainers(ctx)
	var quick, slow []*halfMade
	for _, o := range r.pods.List() {
		if o.Status().Phase != phasePlanned {
			continue
		}
		s := newSandbox(o)
		r.reserve(ctx, s)
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
func (r *halfMades) undo(all []*halfMade, patience time.Duration) {
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
func (r *halfMades) show(h *halfMade) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Spec().Canary {
		return // it is berth's own
	}
	if _, there := r.pods.Get(h.ID()); there && !h.shown {
		h.shown = true
		r.objects.addSandbox(h.sandbox)
	}
}

// takeBack undoes h. One that was listed meanwhile stays so, with nothing in it:
// the kubelet has seen it and removes it. So does one that cannot be undone.
func (r *halfMades) takeBack(h *halfMade) {
	defer h.op.unlock()
	ctx, cancel := context.WithTimeout(r.background, undoTimeout)
	defer cancel()
	b := r.stops
	err := b.tearDown(ctx, h.sandbox)
	if r.background.Err() != nil {
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
	if h.Spec().Canary {
		log.G(ctx).WithError(err).WithField("sandbox", h.ID()).Warn("a canary pod of an earlier daemon could not be taken back yet")
		go r.canaries.takeBackLater(h.sandbox, func() {})
		return
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", h.ID()).Error("a half-made sandbox could not be taken back; it is listed as not ready")
	}
	h.force(ctx, func(st *sandboxStatus) { st.Phase, st.Stopped = phaseStopped, err == nil })
	r.show(h)
}
