package recovery

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// undoPatience is how long recovery waits for roll-back of partially created sandboxes. Slower
// roll-backs continue while calls are served, and their sandboxes are listed as NOTREADY.
const undoPatience = 5 * time.Second

// dropUnfinished rolls back partially created objects, and containers without a sandbox.
func (r *recovery) dropUnfinished(ctx context.Context) {
	r.dropContainers(ctx)
	var quick, slow []*unfinished
	for _, o := range r.Pods.Sandboxes.List() {
		if o.Status().Phase != pod.PhasePlanned {
			continue
		}
		s := pod.NewSandbox(o, r.Tasks)
		r.reserveSandbox(s)
		s.Op <- struct{}{} // removals wait
		if h := (&unfinished{Sandbox: s}); r.unresponsive.has(s.Runner.Name()) {
			slow = append(slow, h)
		} else {
			quick = append(quick, h)
		}
	}
	r.undo(quick, undoPatience)
	r.undo(slow, 0)
}

// unfinished is a sandbox that is being rolled back.
type unfinished struct {
	*pod.Sandbox
	mu    sync.Mutex
	shown bool // guarded by mu: it is listed, and stays until it is removed
}

// undo rolls sandboxes back, and after patience lists those that are left.
func (r *recovery) undo(all []*unfinished, patience time.Duration) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		each(all, r.rollBack)
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		for _, h := range all {
			r.show(h)
		}
	}
}

// show lists h unless it is removed.
func (r *recovery) show(h *unfinished) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Spec().SelfCheck {
		return // never listed
	}
	if _, there := r.Pods.Sandboxes.Get(h.ID()); there && !h.shown {
		h.shown = true
		r.Pods.Index.AddSandbox(h.Sandbox)
	}
}

// rollBack removes h. If roll-back fails, h is listed with what is left; if h was listed meanwhile,
// it stays listed with nothing in it. In both cases the kubelet removes it.
func (r *recovery) rollBack(h *unfinished) {
	defer h.Op.Unlock()
	ctx, cancel := context.WithTimeout(r.Pods.Background, pod.UndoTimeout)
	defer cancel()
	// The shim may block, and not answer, until its log is read.
	if err := h.Runner.ReadLog(ctx); err != nil && !errors.Is(err, shim.ErrGone) {
		log.G(ctx).WithError(err).WithField("sandbox", h.ID()).Warn("Failed to read the log of shim")
	}
	err := r.Sandboxes.TearDown(ctx, h.Sandbox)
	if r.Pods.Background.Err() != nil {
		return // repeated at the next start
	}
	h.mu.Lock()
	if err == nil && !h.shown {
		if err = r.Sandboxes.Forget(h.Sandbox); err == nil {
			h.mu.Unlock()
			return
		}
	}
	h.mu.Unlock()
	if h.Spec().SelfCheck {
		log.G(ctx).WithError(err).WithField("sandbox", h.ID()).Warn("Failed to roll back self-check pod of an earlier daemon; will retry")
		go r.SelfChecks.RollBackLater(h.Sandbox, func() {})
		return
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", h.ID()).Error("Failed to roll back partially created sandbox; listed as NotReady")
	}
	h.Record(ctx, func(st *pod.SandboxStatus) { st.Phase, st.Stopped = pod.PhaseStopped, err == nil })
	r.show(h)
}
