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

// shimPatience is how long a foreign shim may take to end what runs in a sandbox, from
// the first call that it is told in. One that takes longer is killed, whatever it answers:
// nothing else can end what it runs the pod in.
const shimPatience = time.Minute

// insistInterval is the pause before a shim that refused is told again.
const insistInterval = time.Second

// Insist calls end until it succeeds, or the time of the shim is up. The shim is killed
// then, and with it all that it runs the pod in; end is called once more to see that.
func (r *foreign) Insist(ctx context.Context, end func(context.Context) error) error {
	err := insist(ctx, r.sandbox, end, shim.IsUnresponsive)
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

// insist has the shim of s end something. It tells it again until it does so, its time is
// up or final says that it never will, and returns the last error.
func insist(ctx context.Context, s *pod.Sandbox, end func(context.Context) error, final func(error) bool) error {
	now := time.Now()
	s.EndAsked.CompareAndSwap(nil, &now)
	// Who asks with less patience than this one asks often: one try is always made.
	ctx, cancel := context.WithTimeout(ctx, max(shimPatience-now.Sub(*s.EndAsked.Load()), pod.KillGrace))
	defer cancel()
	for {
		err := end(ctx)
		if err == nil || final(err) {
			return err
		}
		select {
		case <-time.After(insistInterval):
		case <-ctx.Done():
			return err
		}
	}
}

// End ends the process, the shim, and what the shim runs the pod in.
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
		// What was never started may still be in the making.
		if err := client.AwaitGone(ctx); err != nil {
			return err
		}
	}
	return r.endPod(ctx)
}

// endByShim has the shim end the process, if it does so in time.
func (r *foreign) endByShim(ctx context.Context) (client *shim.Client, err error) {
	err = insist(ctx, r.sandbox, func(ctx context.Context) error {
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

// kill kills the shim, and cleans up after it as after one that was lost for the reason
// cause.
func (r *foreign) kill(ctx context.Context, cause error) error {
	// First, so that it makes nothing more.
	if err := r.dismiss(ctx, nil); err != nil {
		return err
	}
	_, err := r.cleanUp(ctx, r.sandbox.ID(), cause)
	return err
}

// dismiss ends the shim, which has nothing left to run.
func (r *foreign) dismiss(ctx context.Context, client *shim.Client) error {
	ep, err := r.endpoint(ctx)
	if err != nil {
		return nil //nolint:nilerr // none was started
	}
	return r.shims.DismissForeign(ctx, ep, client, r.sandbox.ID())
}

// A foreign shim may run a pod in something that is none of its tasks: a virtual
// machine, which nothing ends when the shim is gone. It is found by its cgroup.

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
			s.Killed.Store(true) // before they can be found dead
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
