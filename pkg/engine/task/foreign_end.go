package task

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/log"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// shimPatience is how long a foreign shim may take, from the first request, to stop what runs in a
// sandbox. After that the shim is killed, whatever it answers, with all that it runs the pod in. An
// unresponsive shim is killed at once.
const shimPatience = time.Minute

// retryInterval is the pause before a shim that refused is asked again.
const retryInterval = time.Second

// StopOrKill calls end until it succeeds. If the shim is unresponsive or shimPatience is over, it
// kills the shim with all that it runs the pod in, and calls end once more to confirm.
func (r *foreign) StopOrKill(ctx context.Context, end func(context.Context) error) error {
	err := retryStop(ctx, r.sandbox, end, shim.IsUnresponsive)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	log.G(ctx).WithError(err).WithField("sandbox", r.sandbox.ID()).Warn("Killing shim that failed to stop its containers")
	if err := r.kill(ctx, shim.ErrGone); err != nil {
		return fmt.Errorf("kill its shim: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	return end(ctx)
}

// retryStop retries end until it succeeds, final returns true for its error, or shimPatience is
// over. It returns the last error.
func retryStop(ctx context.Context, s *pod.Sandbox, end func(context.Context) error, final func(error) bool) error {
	now := time.Now()
	s.EndAsked.CompareAndSwap(nil, &now)
	// Even after shimPatience, allow one whole attempt: a caller may repeat its call.
	ctx, cancel := context.WithTimeout(ctx, max(shimPatience-now.Sub(*s.EndAsked.Load()), pod.KillGrace))
	defer cancel()
	for {
		err := end(ctx)
		if err == nil || final(err) {
			return err
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return err
		}
	}
}

// End stops the sandbox's task, the shim, and what the shim runs the pod in.
func (r *foreign) End(ctx context.Context) error {
	client, err := r.endByShim(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		if !errors.Is(err, shim.ErrGone) {
			log.G(ctx).WithError(err).WithField("sandbox", r.sandbox.ID()).Warn("Killing shim that failed to stop its sandbox")
		}
		client = nil
		if err := r.kill(ctx, err); err != nil {
			return err
		}
	}
	if err := r.dismiss(ctx, client); err != nil {
		return err
	}
	if client != nil && r.sandbox.Status().PID == 0 {
		// The shim may still be creating a sandbox that was never started.
		if err := client.AwaitGone(ctx); err != nil {
			return err
		}
	}
	return r.endPod(ctx)
}

// endByShim asks the shim to stop the sandbox's task, within shimPatience.
func (r *foreign) endByShim(ctx context.Context) (client *shim.Client, err error) {
	err = retryStop(ctx, r.sandbox, func(ctx context.Context) error {
		if err := r.sandbox.Creating.Load().Await(ctx); err != nil {
			return err
		}
		if client, err = r.Client(ctx); err != nil {
			return err
		}
		return EndTask(ctx, client, r.sandbox.ID())
	}, func(err error) bool {
		return errors.Is(err, context.DeadlineExceeded) || shim.IsUnresponsive(err) || shim.Lost(err)
	})
	return client, err
}

// kill kills the shim, and cleans up as if the shim had been lost because of cause.
func (r *foreign) kill(ctx context.Context, cause error) error {
	// Kill the shim first, so that it creates nothing more.
	if err := r.dismiss(ctx, nil); err != nil {
		return err
	}
	_, err := r.cleanUp(ctx, r.sandbox.ID(), cause)
	return err
}

// dismiss asks the shim to exit, or kills it if client is nil.
func (r *foreign) dismiss(ctx context.Context, client *shim.Client) error {
	ep, err := r.endpoint(ctx)
	if err != nil {
		return nil //nolint:nilerr // no shim was started
	}
	return r.shims.DismissForeign(ctx, ep, client, r.sandbox.ID())
}

// A foreign shim may run a pod in a process that is not a task: a virtual machine, which may
// outlive the shim. It is found by its cgroup.

// killPod kills all that a dead shim ran a pod in. The pod is recorded as not ready first, because
// the rest may take long.
func (r *foreign) killPod(ctx context.Context) error {
	s := r.sandbox
	if s.Status().Phase == pod.PhaseReady {
		s.Record(ctx, func(st *pod.SandboxStatus) { st.Phase = pod.PhaseStopped })
	}
	groups, err := r.podGroups()
	for _, group := range groups {
		alive, kerr := group.Processes()
		if len(alive) > 0 {
			s.Killed.Store(true) // before the death of the processes can be observed
			kerr = errors.Join(kerr, group.Kill(ctx))
		}
		err = errors.Join(err, kerr)
	}
	return err
}

// podGroups returns the cgroups of the pod as a whole.
func (r *foreign) podGroups() ([]cgroup.Paths, error) {
	s := r.sandbox
	path, err := s.Spec().CgroupsPath(s.ID())
	if err != nil {
		return nil, nil //nolint:nilerr // the pod never had a cgroup
	}
	return cgroup.OfPod(path, s.ID())
}

// leaving is how long the pod's processes may take to exit after the shim was asked to exit.
const leaving = 5 * time.Second

// endPod returns when no process of the pod is left. The pod's task has exited and its shim was
// asked to exit. If the shim left a virtual machine behind, endPod kills the machine and cleans up.
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
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, leaving, true, func(context.Context) (bool, error) {
		groups, err := r.podGroups()
		alive := 0
		for _, group := range groups {
			pids, perr := group.Processes()
			alive, err = alive+len(pids), errors.Join(err, perr)
		}
		return alive == 0, err
	})
	if wait.Interrupted(err) {
		return false, ctx.Err()
	}
	return err == nil, err
}
