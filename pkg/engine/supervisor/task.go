package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/keyedlock"
	"github.com/berth-cri/berth/pkg/engine/supervisor/cgroups"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/output"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runsc"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

const (
	// cleanupTimeout bounds a cleanup after an exit, a failed start or an abandoned exec.
	cleanupTimeout = 20 * time.Second
	// drainTimeout is how long Delete and CloseStdio wait for the output to end.
	drainTimeout = 2 * time.Second

	rootfsDir = "rootfs"
)

// task is one container.
type task struct {
	supervisor *supervisor
	id         string
	dir        string
	processes  *processes.Set
	ops        keyedlock.Mutex // held by calls that must not overlap: start, pause, delete…
	releasing  sync.Mutex      // held while the runtime deletes the container
	execs      *execs
	kernel     kernel
	starter    starter

	mu       sync.Mutex
	journal  journal.Task
	first    *process
	paused   bool
	output   *output.Output // nil until the start
	oom      *cgroups.OOMCounter
	released bool // release has nothing left to do
	// unstarted is set after a failed or interrupted start: the runtime's state may be incomplete.
	unstarted bool
	deleted   bool
}

// hold takes the lock that serializes a task's calls; its error is shown to the CRI client.
func hold(ctx context.Context, ops keyedlock.Mutex) error {
	if err := ops.Lock(ctx); err != nil {
		return fmt.Errorf("another call for this container is in progress: %w", err)
	}
	return nil
}

func newTask(s *supervisor, j journal.Task) *task {
	t := &task{
		supervisor: s,
		id:         j.ID,
		dir:        journal.TaskDir(s.dir, j.ID),
		processes:  s.processes,
		ops:        keyedlock.NewMutex(),
		journal:    j,
		oom:        cgroups.CountOOM(s.ctx, s.processes, cgroups.Cgroup{}, nil),
		first:      newProcess("", j.Terminal, stdio.Paths{Stdin: j.Stdin, Stdout: j.Stdout, Stderr: j.Stderr}),
	}
	t.execs = &execs{task: t, byID: map[string]*process{}}
	bind(t)
	return t
}

// context carries the log fields of the task. It never ends, so that work outlives the calls that
// began it.
func (t *task) context() context.Context {
	return log.WithLogger(t.supervisor.ctx, log.G(t.supervisor.ctx).WithField("container", t.id))
}

// save writes the journal. t.mu is held.
func (t *task) save() error {
	if t.deleted {
		return nil
	}
	if err := journal.Write(filepath.Join(t.dir, journal.TaskFile), &t.journal); err != nil {
		return fmt.Errorf("write task journal: %w", err)
	}
	return nil
}

// process returns the process of an exec, or the first process for an empty execID. t.mu is held.
func (t *task) process(execID string) (*process, error) {
	if execID == "" {
		return t.first, nil
	}
	if p, ok := t.execs.byID[execID]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("exec %q of container %q: %w", execID, t.id, errdefs.ErrNotFound)
}

func (t *task) call(ctx context.Context, c *runtimecall.Call) ([]byte, error) {
	c.Options = &t.journal.Options // never changes
	return t.kernel.call(ctx, c)
}

// runs reports whether the container runs and is not paused, by the runtime's state.
func (t *task) runs(ctx context.Context) bool {
	out, err := t.call(ctx, &runtimecall.Call{Args: []string{"state", t.id}})
	var state struct {
		Status string `json:"status"`
	}
	return err == nil && json.Unmarshal(runsc.LastJSON(out), &state) == nil && state.Status == "running"
}

// wait returns the exit of a process, once it exited.
func (t *task) wait(ctx context.Context, execID string) (journal.Exit, error) {
	t.mu.Lock()
	p, err := t.process(execID)
	t.mu.Unlock()
	if err != nil {
		return journal.Exit{}, err
	}
	select {
	case <-p.done:
		return p.exit, nil
	case <-ctx.Done():
		return journal.Exit{}, ctx.Err()
	}
}

// finish records the exit of the first process, on disk before waiters see it.
func (t *task) finish(exit journal.Exit) {
	if err := journal.Write(filepath.Join(t.dir, journal.ExitFile), &exit); err != nil {
		log.G(t.context()).WithError(err).Error("Failed to record container exit; a supervisor restart loses it")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.first
	p.identity.PID = exit.PID
	t.paused = false
	p.stop(exit)
}

// flush waits until the log of an exited task is complete.
func (t *task) flush(ctx context.Context) {
	t.mu.Lock()
	out := t.output
	t.mu.Unlock()
	if out != nil {
		out.Flush(ctx)
	}
}

// ended handles the exit of the first process. It announces the exit before it cleans up.
func (t *task) ended() {
	t.mu.Lock()
	p := t.first
	identity, pidfd, child := p.identity, p.pidfd, p.child
	t.mu.Unlock()
	exit := exitOf(t.processes, identity, pidfd, child)
	exit.OOM = t.oom.Killed()
	t.finish(exit)
	t.afterwards()
}

// afterwards cleans up an exited container early, so that Delete has little left to do.
func (t *task) afterwards() {
	t.oom.Close()
	ctx, cancel := context.WithTimeout(t.context(), cleanupTimeout)
	defer cancel()
	t.kernel.exited(ctx)
}

// release makes the runtime delete an exited container. Another call retries after a failure, and
// does nothing after a success.
func (t *task) release(ctx context.Context) error {
	t.releasing.Lock()
	defer t.releasing.Unlock()
	t.mu.Lock()
	done, unstarted := t.released, t.unstarted
	t.mu.Unlock()
	if done {
		return nil
	}
	err := t.kernel.release(ctx, unstarted)
	t.mu.Lock()
	t.released = err == nil
	t.mu.Unlock()
	return err
}

// erase makes the runtime delete the container. If the runtime is missing, or has failed twice to
// delete a container that did not start, erase removes the runtime's state.
func (t *task) erase(ctx context.Context, force bool, removeState func(root, id string) error) error {
	args := []string{"delete"}
	if force {
		args = append(args, "--force")
	}
	_, err := t.call(ctx, &runtimecall.Call{Args: append(args, t.id)})
	t.mu.Lock()
	again := t.unstarted // discard has already tried to delete the container
	t.mu.Unlock()
	switch {
	case errors.Is(err, runtimecall.ErrNoRuntime):
		log.G(ctx).WithError(err).Warn("Runtime of exited container is missing; removing the state without it")
		err = removeState(t.journal.Options.Root, t.id)
	case err != nil && again && !runtimecall.IsUnknown(err):
		// A pod must be removable even if its runtime can neither start nor delete.
		log.G(ctx).WithError(err).Warn("Runtime failed to delete a container that did not start; removing the state without it")
		t.killOrphanedRun()
		err = removeState(t.journal.Options.Root, t.id)
	}
	if err != nil && !runtimecall.IsUnknown(err) {
		return fmt.Errorf("delete container: %w", err)
	}
	return nil
}

// discard makes the runtime delete a container that did not start. It first kills the runtime call:
// if the runtime has not recorded the container, the delete does not find the call's processes.
func (t *task) discard() {
	ctx, cancel := context.WithTimeout(t.context(), cleanupTimeout)
	defer cancel()
	t.killOrphanedRun()
	err := t.kernel.release(ctx, true)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to delete a container that did not start; will retry at its removal")
	}
	t.discarded(err)
}

// discarded records that a container did not start; err is the error of its cleanup.
func (t *task) discarded(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released, t.unstarted = err == nil, true
}

// delete removes a container that exited or was never started.
func (t *task) delete(ctx context.Context) (journal.Exit, error) {
	if err := hold(ctx, t.ops); err != nil {
		return journal.Exit{}, err
	}
	defer t.ops.Unlock()
	t.mu.Lock()
	state, out, gone := t.first.state, t.output, t.deleted
	t.mu.Unlock()
	switch {
	case gone:
		return journal.Exit{}, t.supervisor.noTask(t.id)
	case state == created:
		t.finish(journal.Exit{Status: processes.UnknownStatus, Unknown: true, ExitedAt: time.Now().UnixNano()})
	case state != stopped:
		return journal.Exit{}, fmt.Errorf("container %q is running; kill it and wait for its exit before deleting it: %w", t.id, errdefs.ErrFailedPrecondition)
	default:
		if err := t.release(ctx); err != nil {
			return journal.Exit{}, err
		}
	}
	if out != nil {
		out.Drain(drainTimeout)
	}
	return t.first.exit, t.remove()
}

func (t *task) remove() error {
	if t.journal.MountedRootfs {
		if err := mount.UnmountAll(filepath.Join(t.journal.Bundle, rootfsDir), 0); err != nil {
			return fmt.Errorf("unmount the root filesystem: %w", err)
		}
	}
	t.mu.Lock()
	t.deleted = true
	err := os.RemoveAll(t.dir)
	t.mu.Unlock()
	if err != nil {
		return fmt.Errorf("remove task journal: %w", err)
	}
	t.supervisor.forget(t.id)
	return nil
}

// signal sends a signal to the first process, or to all processes, of the container.
func (t *task) signal(ctx context.Context, sig unix.Signal, all bool) error {
	t.mu.Lock()
	state, abort := t.first.state, t.first.abort
	t.mu.Unlock()
	switch {
	case state == stopped:
		return errFinished
	case state == starting && sig == unix.SIGKILL:
		abort()
		return nil
	case state != running:
		return t.notRunning()
	}
	return t.kernel.signal(ctx, sig, all)
}

func (t *task) notRunning() error {
	return fmt.Errorf("container %q is not running: %w", t.id, errdefs.ErrFailedPrecondition)
}

// whenRunning calls what() if the container runs, one call at a time.
func (t *task) whenRunning(ctx context.Context, what func(ctx context.Context) error) error {
	if err := hold(ctx, t.ops); err != nil {
		return err
	}
	defer t.ops.Unlock()
	t.mu.Lock()
	state := t.first.state
	t.mu.Unlock()
	if state != running {
		return t.notRunning()
	}
	return what(context.WithoutCancel(ctx))
}

// orphanedRuns bounds the searches for processes of the runtime: each search can miss a process
// that is being forked.
const orphanedRuns = 10

// killOrphanedRun kills the runtime call of a start that failed or was interrupted, because the
// call could still start the container. The call and the processes that it forked are found by the
// pid file or the bundle in their arguments.
func (t *task) killOrphanedRun() {
	pidFile := filepath.Join(t.dir, "pid")
	for range orphanedRuns {
		if !processes.KillCalled(func(args []string) bool {
			return slices.ContainsFunc(args, func(arg string) bool {
				return arg == pidFile || arg == "--pid-file="+pidFile || arg == t.journal.Bundle || arg == "--bundle="+t.journal.Bundle
			})
		}) {
			return
		}
	}
}

// freeze pauses or resumes the container.
func (t *task) freeze(ctx context.Context, verb string, paused bool) error {
	return t.whenRunning(ctx, func(ctx context.Context) error {
		if paused {
			// Write the journal first: a failed call may have paused the container, and a successor
			// reads that only from the journal.
			if err := t.setPaused(true); err != nil {
				return err
			}
		}
		_, err := t.call(ctx, &runtimecall.Call{Args: []string{verb, t.id}})
		if paused && err == nil || err != nil && !t.runs(ctx) {
			return err
		}
		return errors.Join(err, t.setPaused(false))
	})
}

// setPaused records whether the container is possibly paused.
func (t *task) setPaused(paused bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.journal.Paused
	t.journal.Paused = paused
	if err := t.save(); err != nil {
		t.journal.Paused = before
		return err
	}
	t.paused = paused && t.first.state == running
	return nil
}
