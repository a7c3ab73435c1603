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
	// cleanupTimeout bounds the calls that undo what another call began.
	cleanupTimeout = 20 * time.Second
	// drainTimeout is how long Delete waits for the end of the output.
	drainTimeout = 2 * time.Second

	rootfsDir = "rootfs"
)

// task is one container.
type task struct {
	supervisor *Supervisor
	id         string
	dir        string
	processes  *processes.Set
	ops        keyedlock.Mutex // held by calls that must not overlap: start, pause, delete…
	releasing  sync.Mutex      // held while the runtime deletes it
	execs      *execs
	kernel     kernel
	starter    starter

	mu       sync.Mutex
	journal  journal.Task
	first    *process
	paused   bool
	output   *output.Output // nil until it is started
	oom      *cgroups.OOMCounter
	released bool // the runtime knows it no more
	// unstarted is set after its start failed: what there is of it may be in any state.
	unstarted bool
	deleted   bool
}

// hold takes the lock of a task's calls; its error is for the caller of the CRI.
func hold(ctx context.Context, ops keyedlock.Mutex) error {
	if err := ops.Lock(ctx); err != nil {
		return fmt.Errorf("another call for this container is in progress: %w", err)
	}
	return nil
}

func newTask(s *Supervisor, j journal.Task) *task {
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

// context carries the log fields of the task. What it is used for is not ended
// by a caller that leaves.
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

// process returns the first process or that of an exec. t.mu is held.
func (t *task) process(execID string) (*process, error) {
	if execID == "" {
		return t.first, nil
	}
	if p, ok := t.execs.byID[execID]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("exec %q of container %q: %w", execID, t.id, errdefs.ErrNotFound)
}

// call runs the runtime for this container.
func (t *task) call(ctx context.Context, c *runtimecall.Call) ([]byte, error) {
	c.Options = &t.journal.Options // never changes
	return t.kernel.call(ctx, c)
}

// runs asks the runtime whether the container runs, and does not stand still.
func (t *task) runs(ctx context.Context) bool {
	out, err := t.call(ctx, &runtimecall.Call{Args: []string{"state", t.id}})
	var state struct {
		Status string `json:"status"`
	}
	return err == nil && json.Unmarshal(runsc.LastJSON(out), &state) == nil && state.Status == "running"
}

// wait returns how a process ended.
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

// finish records how the first process ended, on disk before anybody sees it.
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

// flush waits for the log of an ended task to be whole.
func (t *task) flush(ctx context.Context) {
	t.mu.Lock()
	out := t.output
	t.mu.Unlock()
	if out != nil {
		out.Flush(ctx)
	}
}

// ended is what happens when the first process has ended: nothing between that
// and the announcement that is not needed for it.
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

// afterwards clears what an ended container leaves, before anybody asks for it:
// Delete then has little to do.
func (t *task) afterwards() {
	t.oom.Close()
	ctx, cancel := context.WithTimeout(t.context(), cleanupTimeout)
	defer cancel()
	t.kernel.exited(ctx)
}

// release makes the runtime forget an ended container. It can be called often.
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

// erase has the runtime delete the container, or removes its state where the runtime cannot.
func (t *task) erase(ctx context.Context, force bool, removeState func(root, id string) error) error {
	args := []string{"delete"}
	if force {
		args = append(args, "--force")
	}
	_, err := t.call(ctx, &runtimecall.Call{Args: append(args, t.id)})
	t.mu.Lock()
	again := t.unstarted // discard has tried it before
	t.mu.Unlock()
	switch {
	case errors.Is(err, runtimecall.ErrNoRuntime):
		log.G(ctx).WithError(err).Warn("Runtime of exited container is missing; removing the state without it")
		err = removeState(t.journal.Options.Root, t.id)
	case err != nil && again && !runtimecall.IsUnknown(err):
		// A runtime that can neither start nor delete must not keep its pods.
		log.G(ctx).WithError(err).Warn("Runtime failed to delete a container that did not start; removing the state without it")
		t.killOrphanedRun()
		err = removeState(t.journal.Options.Root, t.id)
	}
	if err != nil && !runtimecall.IsUnknown(err) {
		return fmt.Errorf("delete container: %w", err)
	}
	return nil
}

// discard deletes whatever the runtime has of a container that did not start. A call that was
// killed before the runtime recorded the container may have left processes that its delete
// does not find.
func (t *task) discard() {
	ctx, cancel := context.WithTimeout(t.context(), cleanupTimeout)
	defer cancel()
	t.killOrphanedRun()
	err := t.kernel.release(ctx, true)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to delete container that did not start from its runtime; will retry at its removal")
	}
	t.discarded(err)
}

// discarded records whether the runtime has forgotten a container that did not start.
func (t *task) discarded(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released, t.unstarted = err == nil, true
}

// delete removes an ended container, or one that was never started.
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

// signal sends a signal to the first process, or to all processes, of the
// container.
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

// whenRunning runs a call that needs a running container, one at a time.
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

// orphanedRuns bounds how often what a runtime left is looked for: each look can miss
// what is being forked.
const orphanedRuns = 10

// killOrphanedRun ends the runtime that a supervisor was starting a container with when
// it was killed. It goes on otherwise, and starts the container after it was given up.
// It is known by what it was called with, which no other call has: the pid file, or the
// bundle, which runtimes hand on to processes that they fork.
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

// freeze pauses the container, or lets it go on.
func (t *task) freeze(ctx context.Context, verb string, paused bool) error {
	return t.whenRunning(ctx, func(ctx context.Context) error {
		if paused {
			// First: a call that fails, or whose supervisor dies, may have paused it.
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

// setPaused records whether the container may stand still.
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
