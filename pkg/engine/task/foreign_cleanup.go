package task

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// A foreign shim cannot be replaced. When it dies its containers run on, and
// nobody will ever see them end, pass on their output or stop them: so they are
// ended, and only then said to be.

// cleanUpTimeout bounds one try to end what a dead shim left of a task.
const cleanUpTimeout = 30 * time.Second

// remains is what a task has on the host, and leaves there when its shim dies.
type remains struct {
	bundle string
	group  cgroup.Paths
	pid    int // of its first process, 0 if it was not started
}

func (r *Service) remainsOf(s *pod.Sandbox, task string) remains {
	if task == s.ID() {
		found := remains{bundle: r.pods.ProcessBundle(task), pid: s.Status().PID}
		if path, err := s.Spec().CgroupsPath(task); err == nil {
			found.group = cgroup.HostPaths(path)
		}
		return found
	}
	found := remains{bundle: r.pods.ContainerDir(task)}
	if o, ok := r.pods.Containers.Get(task); ok {
		found.pid, found.group = o.Status().PID, cgroup.HostPaths(o.Spec().CgroupsPath)
	}
	return found
}

// tasksOf are the tasks of s: its own and those of its containers.
func (r *Service) tasksOf(s *pod.Sandbox) []string {
	tasks := []string{s.ID()}
	for _, o := range r.pods.Containers.List() {
		if o.Spec().Sandbox == s.ID() {
			tasks = append(tasks, o.ID())
		}
	}
	return tasks
}

// countLiving notes which tasks of a pod run that is about to be killed with its shim.
// The kernel kills containers with the sandbox process whose PID namespace they share,
// and whoever comes for them finds them dead.
func (r *foreign) countLiving() {
	r.living = map[string]bool{}
	for _, task := range r.tasksOf(r.sandbox) {
		left := r.remainsOf(r.sandbox, task)
		alive, err := left.group.Processes()
		r.living[task] = err == nil && slices.Contains(alive, left.pid)
	}
}

// cleanUp ends and cleans up what a shim that is lost for the reason cause left of a
// task, and returns what is known of its end. It may be repeated, and works when
// nothing is left. With a shim that is gone goes all that it ran the pod in: a
// machine may hold every container, and has its own idea of whose it is.
func (r *foreign) cleanUp(ctx context.Context, task string, cause error) (pod.Exit, error) {
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	s, left := r.sandbox, r.remainsOf(r.sandbox, task)
	gone := task == s.ID() || errors.Is(cause, shim.ErrGone)
	if gone {
		r.found.Do(r.countLiving)
	}
	// The count goes with the cgroup.
	kills, _ := cgroup.OOMKills(left.group)
	alive, err := killGroup(ctx, left.group)
	if err != nil {
		return pod.Exit{}, err
	}
	wasAlive := slices.Contains(alive, left.pid)
	if gone {
		wasAlive = wasAlive || r.living[task]
		if err := r.killPod(ctx); err != nil {
			return pod.Exit{}, err
		}
		wasAlive = wasAlive || !s.HostProcesses && left.pid > 0 && s.Killed.Load()
	}
	now := time.Now()
	death, err := r.shims.CleanUpForeign(ctx, shim.Start{Binary: r.binaries.Runtimes.Of(s.Spec()).Path, ID: task, Bundle: left.bundle})
	if err != nil {
		if ctx.Err() != nil {
			return pod.Exit{}, err // it may be in the middle of it
		}
		// The binary may be gone with the handler. What it would have cleaned up
		// is then only files.
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).WithField("task", task).Warn("Failed to clean up after dead shim")
	}
	return left.exit(death, wasAlive, kills > 0, now), nil
}

func killGroup(ctx context.Context, group cgroup.Paths) ([]int, error) {
	alive, err := group.Processes()
	if err == nil && len(alive) > 0 {
		err = group.Kill(ctx)
	}
	return alive, err
}

// exit is how the task exited: as its shim wrote down before it died, or killed by the
// clean-up, if its first process was alive until then. Without a record, the delete
// action reports SIGKILL, which containerd shows, too.
func (r remains) exit(d shim.Death, wasAlive, oom bool, now time.Time) pod.Exit {
	const killed = 128 + uint32(unix.SIGKILL)
	switch {
	case wasAlive:
		return pod.Exit{Status: killed, At: now, Why: "the container was killed because its shim died"}
	case d.Status == killed:
		return pod.Exit{Status: killed, At: now, OOM: oom, Why: "its shim died before it reported how the container exited"}
	case !d.At.IsZero():
		return pod.Exit{Status: d.Status, At: d.At, OOM: oom}
	}
	return pod.Exit{Status: pod.UnknownExitCode, At: now, OOM: oom, Unknown: true}
}
