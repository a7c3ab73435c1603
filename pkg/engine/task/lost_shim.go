package task

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// A foreign shim cannot be replaced. When it dies its containers run on, and
// nobody will ever see them end, pass on their output or stop them: so they are
// ended, and only then said to be.

// BuryTimeout bounds one try to end what a dead shim left of a task.
const BuryTimeout = 30 * time.Second

// LostShim tells whether err, from a call to who runs the tasks of s, means that
// its tasks have to be buried. A shim that cannot be reached while its task is to
// be ended is as good as a dead one.
func LostShim(s *pod.Sandbox, err error) bool {
	return s.Spec().Definition.Type == handler.Shim && shim.Lost(err)
}

// burials end what dead shims have left.
type lostShims struct {
	pods     *pod.Registry
	binaries *binaries.Binaries
	settings *settings.Settings
	shims    undertaker
}

// undertaker has the binary of a dead shim clean up.
type undertaker interface {
	BuryForeign(ctx context.Context, s shim.Start) (shim.Death, error)
}

// remains is what a task of a foreign shim leaves on the host.
type remains struct {
	bundle string
	group  cgroup.Paths
	pid    int // of its first process, 0 if it was not started
}

func (b *lostShims) remainsOf(s *pod.Sandbox, task string) remains {
	if task == s.ID() {
		r := remains{bundle: b.pods.ProcessBundle(task), pid: s.Status().PID}
		if path, err := cgroup.Path(b.settings.Of(s.Spec()).CgroupDriver, s.Config().GetLinux().GetCgroupParent(), task); err == nil {
			r.group = cgroup.HostPaths(path)
		}
		return r
	}
	r := remains{bundle: b.pods.ContainerDir(task)}
	if o, ok := b.pods.Containers.Get(task); ok {
		r.pid, r.group = o.Status().PID, cgroup.HostPaths(o.Spec().CgroupsPath)
	}
	return r
}

// Bury ends and cleans up what a shim that is lost for the reason cause left of a
// task, and returns what is known of its end. It may be repeated, and works when
// nothing is left. With a shim that is gone goes all that it ran the pod in: a
// machine may hold every container, and has its own idea of whose it is.
func (b *lostShims) Bury(ctx context.Context, s *pod.Sandbox, task string, cause error) (Exit, error) {
	ctx, cancel := context.WithTimeout(ctx, BuryTimeout)
	defer cancel()
	r := b.remainsOf(s, task)
	// The count goes with the cgroup.
	kills, _ := cgroup.OOMKills(r.group)
	alive, err := kill(ctx, r.group)
	if err != nil {
		return Exit{}, err
	}
	wasAlive := slices.Contains(alive, r.pid)
	if task == s.ID() || errors.Is(cause, shim.ErrGone) {
		if err := b.killPod(ctx, s); err != nil {
			return Exit{}, err
		}
		wasAlive = wasAlive || s.Spec().Plan.OwnKernel && r.pid > 0 && s.Killed.Load()
	}
	now := time.Now()
	death, err := b.shims.BuryForeign(ctx, shim.Start{Binary: b.binaries.Runtimes.Of(s.Spec()).Path, ID: task, Bundle: r.bundle})
	if err != nil {
		if ctx.Err() != nil {
			return Exit{}, err // it may be in the middle of it
		}
		// The binary may be gone with the handler. What it would have cleaned up
		// is then only files.
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).WithField("task", task).Warn("Failed to clean up after dead shim")
	}
	return r.exit(death, wasAlive, kills > 0, now), nil
}

// kill returns what ran in a cgroup.
func kill(ctx context.Context, group cgroup.Paths) ([]int, error) {
	alive, err := group.Processes()
	if err == nil && len(alive) > 0 {
		err = group.Kill(ctx)
	}
	return alive, err
}

// exit is how the task ended: as its shim wrote down before it died, or else by
// the hand that buried it, if its first process was alive until then. A shim that
// knows nothing says SIGKILL as well, which is no knowledge.
func (r remains) exit(d shim.Death, wasAlive, oom bool, now time.Time) Exit {
	const killed = 128 + uint32(unix.SIGKILL)
	switch {
	case wasAlive:
		return Exit{Status: killed, At: now, Why: "the container was killed because its shim died"}
	case !d.At.IsZero() && d.Status != killed:
		return Exit{Status: d.Status, At: d.At, OOM: oom}
	}
	return Exit{Status: pod.UnknownExitCode, At: now, OOM: oom, Unknown: true}
}

// Endpoint is where the shim of s listens: by its record, or, if the daemon was
// killed before that was written, by what the shim answered to its start.
func (t *tasks) Endpoint(ctx context.Context, s *pod.Sandbox) (shim.Endpoint, error) {
	if ep := s.Status().Shim; ep != nil {
		return *ep, nil
	}
	return t.shims.Started(ctx, t.pods.ProcessBundle(s.ID()))
}

// Dismiss lets the foreign shim of s leave, if it has one. client is nil if it
// cannot be reached.
func (t *tasks) Dismiss(ctx context.Context, s *pod.Sandbox, client *shim.Client) error {
	if s.Spec().Definition.Type != handler.Shim {
		return nil
	}
	ep, err := t.Endpoint(ctx, s)
	if err != nil {
		return nil //nolint:nilerr // none was started
	}
	return t.shims.DismissForeign(ctx, ep, client, s.ID())
}

// AwaitErased waits until the shim of s has forgotten the containers: one that
// has tasks does not leave.
func AwaitErased(ctx context.Context, s *pod.Sandbox, inside []*pod.Container) error {
	if s.Spec().Definition.Type != handler.Shim {
		return nil
	}
	for _, c := range inside {
		select {
		case <-c.Erased:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
