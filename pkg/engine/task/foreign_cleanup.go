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

// When a foreign shim dies, its containers run on without a process that observes exits, forwards
// output or stops them. They are killed first, and only then reported as exited.

// cleanUpTimeout bounds one attempt to clean up a dead shim's task.
const cleanUpTimeout = 30 * time.Second

// leftovers are what a task leaves on the host when its shim dies.
type leftovers struct {
	bundle string
	group  cgroup.Paths
	pid    int // of its first process, 0 if it was not started
}

func (r *Service) leftoversOf(s *pod.Sandbox, task string) leftovers {
	if task == s.ID() {
		found := leftovers{bundle: r.pods.ProcessBundle(task), pid: s.Status().PID}
		if path, err := s.Spec().CgroupsPath(task); err == nil {
			found.group = cgroup.HostPaths(path)
		}
		return found
	}
	found := leftovers{bundle: r.pods.ContainerDir(task)}
	if o, ok := r.pods.Containers.Get(task); ok {
		found.pid, found.group = o.Status().PID, cgroup.HostPaths(o.Spec().CgroupsPath)
	}
	return found
}

// tasksOf returns the tasks of s: its own and those of its containers.
func (r *Service) tasksOf(s *pod.Sandbox) []string {
	tasks := []string{s.ID()}
	for _, o := range r.pods.Containers.List() {
		if o.Spec().Sandbox == s.ID() {
			tasks = append(tasks, o.ID())
		}
	}
	return tasks
}

// countLiving records which tasks run before the pod is killed with its shim. The kernel kills
// containers with the sandbox process that owns their PID namespace, so a later check would find
// them dead.
func (r *foreign) countLiving() {
	r.living = map[string]bool{}
	for _, task := range r.tasksOf(r.sandbox) {
		left := r.leftoversOf(r.sandbox, task)
		alive, err := left.group.Processes()
		r.living[task] = err == nil && slices.Contains(alive, left.pid)
	}
}

// cleanUp kills and cleans up a task after its shim was lost because of cause, and returns the
// task's exit as far as it is known. It is idempotent. If the shim is gone or the task is the
// sandbox's, it also kills all that the shim ran the pod in, such as a virtual machine.
func (r *foreign) cleanUp(ctx context.Context, task string, cause error) (pod.Exit, error) {
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	s, left := r.sandbox, r.leftoversOf(r.sandbox, task)
	gone := task == s.ID() || errors.Is(cause, shim.ErrGone)
	if gone {
		r.found.Do(r.countLiving)
	}
	// Read the count before the kill: it is removed with the cgroup.
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
			return pod.Exit{}, err // the delete action may be incomplete
		}
		// The binary may have been removed with the handler. Continue, because the delete action
		// would only have removed files.
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

// exit returns SIGKILL if clean-up killed the first process, and otherwise the shim's exit record.
// Without a record the delete action reports SIGKILL, as with containerd.
func (r leftovers) exit(d shim.TaskExit, wasAlive, oom bool, now time.Time) pod.Exit {
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
