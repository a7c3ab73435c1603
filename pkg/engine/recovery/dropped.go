package recovery

import (
	"context"
	"errors"
	"sync"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
)

type containerRecord = store.Object[pod.ContainerSpec, pod.ContainerStatus]

var errUnfinished = errors.New("the daemon exited while the container was being created")

// dropContainers rolls back partially created containers. On failure they are listed, for the
// kubelet to remove. Without a sandbox a container cannot be listed; the next daemon tries again.
func (r *recovery) dropContainers(ctx context.Context) {
	var hidden []*containerRecord
	for _, o := range r.Pods.Containers.List() {
		if _, err := r.Pods.Index.Container(o.ID()); err != nil {
			hidden = append(hidden, o)
		}
	}
	var mu sync.Mutex
	var left []*containerRecord // guarded by mu
	each(hidden, func(o *containerRecord) {
		if !r.dropped(ctx, o) {
			mu.Lock()
			defer mu.Unlock()
			left = append(left, o)
		}
	})
	for _, o := range left {
		r.list(ctx, o)
	}
}

func (r *recovery) dropped(ctx context.Context, o *containerRecord) bool {
	s := r.sandboxOf(o)
	if s != nil && r.unresponsive.has(s.Runner.Name()) {
		return false // its unresponsive runner may still use it
	}
	bounded, cancel := context.WithTimeout(ctx, task.RecoveryAnswer)
	defer cancel()
	err := r.drop(bounded, pod.NewContainer(o, s))
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", o.ID()).Error("Failed to roll back partially created container")
	}
	return err == nil
}

func (r *recovery) drop(ctx context.Context, c *pod.Container) error {
	if c.Sandbox != nil {
		if err := r.Containers.EraseTask(ctx, c); err != nil {
			return err
		}
	}
	if err := r.Containers.RemoveParts(ctx, c); err != nil {
		return err
	}
	if err := r.Pods.Containers.Delete(c.ID()); err != nil {
		return err
	}
	r.Pods.Labels.Release(c.Spec().ProcessLabel)
	return nil
}

// sandboxOf returns nil if the container's sandbox has no record.
func (r *recovery) sandboxOf(o *containerRecord) *pod.Sandbox {
	if s, err := r.Pods.Index.Sandbox(o.Spec().Sandbox); err == nil {
		return s
	}
	if p, ok := r.Pods.Sandboxes.Get(o.Spec().Sandbox); ok {
		return pod.NewSandbox(p, r.Tasks)
	}
	return nil
}

func (r *recovery) list(ctx context.Context, o *containerRecord) {
	s := r.sandboxOf(o)
	if s == nil {
		return
	}
	if _, err := r.Pods.Index.Sandbox(s.ID()); err != nil {
		r.reserveSandbox(s)
		s.Record(ctx, func(st *pod.SandboxStatus) { st.Phase = pod.PhaseStopped })
		r.Pods.Index.AddSandbox(s)
	}
	c := pod.NewContainer(o, s)
	r.reserveContainer(c)
	r.Containers.ShowFailed(ctx, c, errUnfinished)
}
