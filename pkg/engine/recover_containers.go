package engine

import (
	"context"
	"errors"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/store"
)

type containerRecord = store.Object[containerSpec, containerStatus]

var errHalfMade = errors.New("the daemon ended while the container was being made")

// dropContainers takes back containers that were never shown. Those that cannot
// be are listed, for the kubelet to remove; one without a sandbox cannot be
// listed, and is tried again by the next start.
func (r *halfMades) dropContainers(ctx context.Context) {
	var mu sync.Mutex
	var left []*containerRecord // guarded by mu
	g := errgroup.Group{}
	g.SetLimit(recoveryParallel)
	for _, o := range r.ctrs.List() {
		if _, err := r.objects.container(o.ID()); err == nil {
			continue
		}
		g.Go(func() error {
			if r.dropped(ctx, o) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			left = append(left, o)
			return nil
		})
	}
	_ = g.Wait()
	for _, o := range left {
		r.list(ctx, o)
	}
}

func (r *halfMades) dropped(ctx context.Context, o *containerRecord) bool {
	s := r.sandboxOf(o)
	if s != nil && r.silent.has(runner(s)) {
		return false // who may yet come back would never let go of it
	}
	bounded, cancel := context.WithTimeout(ctx, recoveryAnswer)
	defer cancel()
	err := r.drop(bounded, newContainer(o, s))
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", o.ID()).Error("take back a half-made container")
	}
	return err == nil
}

func (r *halfMades) drop(ctx context.Context, c *container) error {
	if c.sandbox != nil {
		if err := r.ends.eraseTask(ctx, c); err != nil {
			return err
		}
	}
	if err := r.ends.removeParts(ctx, c); err != nil {
		return err
	}
	if err := r.ctrs.Delete(c.ID()); err != nil {
		return err
	}
	r.labels.Release(c.Spec().ProcessLabel)
	return nil
}

// sandboxOf returns nil for a container whose sandbox has no record.
func (r *halfMades) sandboxOf(o *containerRecord) *sandbox {
	if s, err := r.objects.sandbox(o.Spec().Sandbox); err == nil {
		return s
	}
	if p, ok := r.pods.Get(o.Spec().Sandbox); ok {
		return newSandbox(p)
	}
	return nil
}

// list shows a container, in its sandbox.
func (r *halfMades) list(ctx context.Context, o *containerRecord) {
	s := r.sandboxOf(o)
	if s == nil {
		return
	}
	if _, err := r.objects.sandbox(s.ID()); err != nil {
		r.reserve(ctx, s)
		s.force(ctx, func(st *sandboxStatus) { st.Phase = phaseStopped })
		r.objects.addSandbox(s)
	}
	c := newContainer(o, s)
	if err := r.names.Reserve(reserve.ContainerName(s.ID(), c.config().GetMetadata()), c.ID()); err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("two containers have one name")
	}
	r.creation.showFailed(ctx, c, errHalfMade)
}

func (r *halfMades) reserve(ctx context.Context, s *sandbox) {
	if err := r.names.Reserve(reserve.SandboxName(s.config().GetMetadata()), s.ID()); err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Warn("two sandboxes have one name")
	}
}
