package task

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// A foreign shim may run a pod in something that is none of its tasks: a virtual
// machine, which is nobody's when the shim is gone. It is found by its cgroup.

// killPod kills all that a shim that is gone ran a pod in. The pod is not ready from
// then on, however long the rest takes.
func (r *foreign) killPod(ctx context.Context) error {
	s := r.sandbox
	if s.Status().Phase == pod.PhaseReady {
		s.Record(ctx, func(st *pod.SandboxStatus) { st.Phase = pod.PhaseStopped })
	}
	groups, err := r.podGroups()
	for _, group := range groups {
		alive, kerr := group.Processes()
		if len(alive) > 0 {
			s.Killed.Store(true) // before anybody can find them dead
			kerr = errors.Join(kerr, group.Kill(ctx))
		}
		err = errors.Join(err, kerr)
	}
	return err
}

// podGroups are the cgroups that the shim of s runs it in as a whole.
func (r *foreign) podGroups() ([]cgroup.Paths, error) {
	s := r.sandbox
	path, err := s.Spec().CgroupsPath(s.ID())
	if err != nil {
		return nil, nil //nolint:nilerr // it never had any
	}
	return cgroup.OfPod(path, s.ID())
}

// leaving is how long what a shim ran a pod in may take to go after the shim was
// told to leave.
const leaving = 5 * time.Second

// endPod returns when nothing runs of a pod whose task has ended and whose shim
// was told to leave. A shim may leave its machine behind: it is killed, and the
// delete action cleans up after it.
func (r *foreign) endPod(ctx context.Context) error {
	s := r.sandbox
	if gone, err := r.awaitPodGone(ctx); err != nil {
		return err
	} else if !gone {
		log.G(ctx).WithField("sandbox", s.ID()).Warn("Killing processes that a shim left behind")
		if _, err := r.cleanUp(ctx, s.ID(), shim.ErrGone); err != nil {
			return err
		}
	}
	groups, err := r.podGroups()
	if err != nil {
		return err
	}
	for _, group := range groups {
		if err := group.Remove(ctx); err != nil {
			log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Debug("Failed to remove leftover cgroup")
		}
	}
	return nil
}

func (r *foreign) awaitPodGone(ctx context.Context) (bool, error) {
	bound := time.NewTimer(leaving)
	defer bound.Stop()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		groups, err := r.podGroups()
		if err != nil {
			return false, err
		}
		alive := 0
		for _, group := range groups {
			pids, err := group.Processes()
			if err != nil {
				return false, err
			}
			alive += len(pids)
		}
		if alive == 0 {
			return true, nil
		}
		select {
		case <-bound.C:
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err()
		case <-again.C:
		}
	}
}
