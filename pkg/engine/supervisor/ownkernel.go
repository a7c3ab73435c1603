package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	cgroupstats "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runsc"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
)

// This file is about runtimes whose containers run on a kernel of their own
// (gVisor's runsc): their processes are none of this host. The process that
// runsc names is the sandbox. It ends, with the right status, when the first
// container of the sandbox ends, so that one is watched like any other. The
// other containers of the sandbox are members of it; only `runsc wait` knows
// when they end, so one such process runs for each of them.

// ownKernel is that of a sandbox. What it runs is known and reached by the runtime alone.
type ownKernel struct {
	task *task
	// writing is set while its sandbox is being written, and stands still.
	writing atomic.Bool
}

func (k *ownKernel) call(ctx context.Context, c *runtimecall.Call) ([]byte, error) {
	defer k.locks().SweepEnded()
	return c.Invoke(ctx, k.task.processes)
}

// locks are those of the task's sandbox.
func (k *ownKernel) locks() runsc.Locks {
	return runsc.LocksOf(k.task.journal.Options.Root, k.task.id, k.task.journal.Bundle)
}

// adopt accepts a process that is not our child, as a member's sandbox after a take-over.
func (k *ownKernel) adopt(ctx context.Context, l *launch, facts bundle.Facts) (*launched, error) {
	if !facts.IsMember() {
		return l.takeOver(ctx, k.task.processes.AdoptSoon)
	}
	// The sandbox's process, which its first container answers for.
	got, err := l.takeOver(ctx, func(_ context.Context, pid, pidfd int) error { return k.task.processes.Adopt(pid, pidfd) })
	if err == nil {
		got.member = true
	}
	return got, err
}

func (k *ownKernel) watch() error {
	if k.task.journal.Member {
		go k.awaitExit()
		return nil
	}
	return k.task.processes.Ended(k.task.first.pidfd, k.task.ended)
}

// exited leaves all to release.
func (k *ownKernel) exited(context.Context) {}

// release always uses force: runsc takes a sandbox for running until its process is reaped,
// which after a take-over is up to pid 1; with force it waits for that.
func (k *ownKernel) release(ctx context.Context, unstarted bool) error {
	defer k.locks().Sweep() // also after a failure: it may have been for the end of the sandbox
	err := k.task.erase(ctx, true, runsc.RemoveState)
	if err == nil && unstarted { // runsc leaves the socket of a sandbox that was killed while it started
		err = runsc.RemoveState(k.task.journal.Options.Root, k.task.id)
	}
	return err
}

// awaitExit waits for a member's end.
func (k *ownKernel) awaitExit() {
	status, known := k.waitStatus(k.task.context())
	exit := journal.Exit{PID: k.task.journal.Process.PID, Status: status, Unknown: !known, ExitedAt: time.Now().UnixNano()}
	if known {
		exit.OOM = status == killedStatus && k.claimOOM()
	} else if sandbox, ok := k.sandboxExit(); ok {
		exit = withSandbox(sandbox)
	}
	k.task.finish(exit)
	k.task.afterwards()
}

const killedStatus = 128 + uint32(unix.SIGKILL)

// withSandbox is how a member ended whose sandbox ended like that while it ran. A
// sandbox that was not killed broke, and what became of its containers is not known.
func withSandbox(sandbox journal.Exit) journal.Exit {
	e := journal.Exit{PID: sandbox.PID, Status: processes.UnknownStatus, Unknown: true, ExitedAt: sandbox.ExitedAt, OOM: sandbox.OOM}
	if sandbox.Status == killedStatus && !sandbox.Unknown {
		e.Status, e.Unknown = killedStatus, false
		e.Why = "the sandbox that runs all containers of the pod was killed"
	}
	return e
}

// sandboxGrace is how long a sandbox that does not answer may take to end.
const sandboxGrace = 5 * time.Second

func (k *ownKernel) sandboxExit() (journal.Exit, bool) {
	if owner := k.owner(); owner != nil {
		select {
		case <-owner.first.done:
			return owner.first.exit, true
		case <-time.After(sandboxGrace):
		}
	}
	return journal.Exit{}, false
}

// owner is the task whose first process is the sandbox; nil if it was removed.
func (k *ownKernel) owner() *task {
	for _, t := range append(k.sharers(), k.task) {
		if !t.isMember() {
			return t
		}
	}
	return nil
}

// sharers are the other tasks that run in the sandbox of a member.
func (k *ownKernel) sharers() []*task {
	sandbox := k.task.journal.Process // of a running container, which never changes
	return slices.DeleteFunc(k.task.supervisor.all(), func(other *task) bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return other == k.task || other.journal.Process != sandbox
	})
}

// claimOOM reports whether a member that was killed may have been so for want of
// memory: the kernel killed a process of its sandbox's cgroup since it runs, which
// is excused to the others. gVisor goes on without a process that was lent to one
// of its own, and kills only that.
func (k *ownKernel) claimOOM() bool {
	if !k.task.oom.Killed() {
		return false
	}
	kills := k.task.oom.Count()
	for _, other := range k.sharers() {
		other.mu.Lock()
		// One that began after the kill has excused it already.
		other.journal.ExcusedOOM = min(other.journal.ExcusedOOM+1, kills)
		other.oom.SetExcuse(other.journal.ExcusedOOM)
		if err := other.save(); err != nil {
			log.G(other.context()).WithError(err).Warn("Failed to record out-of-memory kill of another container; it counts for this one after a restart")
		}
		other.mu.Unlock()
	}
	return true
}

// waitPause is how long to wait before waiting is tried again that failed
// although the container runs.
const waitPause = time.Second

func (k *ownKernel) waitStatus(ctx context.Context) (status uint32, known bool) {
	defer k.locks().SweepEnded()
	for {
		out, err := (&runtimecall.Call{
			Options:     &k.task.journal.Options,
			Args:        []string{"wait", k.task.id},
			DeathSignal: unix.SIGKILL, // its successor starts its own
		}).InvokeForever(ctx, k.task.processes)
		if err == nil {
			var result struct {
				ExitStatus *uint32 `json:"exitStatus"`
			}
			if json.Unmarshal(runsc.LastJSON(out), &result) == nil && result.ExitStatus != nil {
				return *result.ExitStatus, true
			}
			err = fmt.Errorf("the runtime's wait reported no exit status: %w", errdefs.ErrUnknown)
		}
		if !k.task.runs(ctx) {
			log.G(ctx).WithError(err).Warn("Failed to determine container exit status")
			return processes.UnknownStatus, false
		}
		time.Sleep(waitPause)
	}
}

// signal sends a signal to the container's first process or to all.
func (k *ownKernel) signal(ctx context.Context, sig unix.Signal, all bool) error {
	args := []string{"kill"}
	if all {
		args = append(args, "--all")
	}
	// A sandbox that is being restored or written may have no process that takes a signal.
	if sig == unix.SIGKILL && !k.task.isMember() && (k.task.journal.Checkpoint != "" || k.writing.Load()) {
		return k.signalWaiting(sig) // with or without processes, it is the end of the sandbox
	}
	err := k.killCall(ctx, append(args, k.task.id, strconv.Itoa(int(sig))))
	var failed *runtimecall.Error
	if k.task.journal.Checkpoint != "" && errors.As(err, &failed) && strings.Contains(failed.Message, "not started") {
		return k.signalWaiting(sig) // the sandbox waits for containers that are restored with this one
	}
	return err
}

func (k *ownKernel) insider(pid int) insider {
	return insider{pid: pid, signal: func(ctx context.Context, sig unix.Signal) error {
		return k.killCall(ctx, []string{"kill", "--pid", strconv.Itoa(pid), k.task.id, strconv.Itoa(int(sig))})
	}}
}

func (k *ownKernel) killCall(ctx context.Context, args []string) error {
	_, err := k.task.call(context.WithoutCancel(ctx), &runtimecall.Call{Args: args})
	if err == nil {
		return nil
	}
	k.task.mu.Lock()
	gone := k.task.first.state == stopped
	k.task.mu.Unlock()
	if gone || finishedWithin(err) {
		return errFinished
	}
	return err
}

// pids lists the pids of a container as its own kernel counts them.
func (k *ownKernel) pids(ctx context.Context) ([]int, error) {
	out, err := k.task.call(ctx, &runtimecall.Call{Args: []string{"ps", "--format", "json", k.task.id}})
	if err != nil {
		return nil, err
	}
	var pids []int
	if err := json.Unmarshal(bytes.TrimSpace(out), &pids); err != nil {
		return nil, fmt.Errorf("decode output of the runtime's ps: %w", err)
	}
	return pids, nil
}

// stats returns statistics that no cgroup of this host has.
func (k *ownKernel) stats(ctx context.Context) (*cgroupstats.Metrics, error) {
	out, err := k.task.call(ctx, &runtimecall.Call{Args: []string{"events", "--stats", k.task.id}})
	if err != nil {
		return nil, err
	}
	return runsc.Stats(out)
}

func (k *ownKernel) update(context.Context, []byte) error {
	return fmt.Errorf("this runtime cannot change the limits of a running container: %w", errdefs.ErrNotImplemented)
}

// finishedWithin reports whether a signal failed because its process is gone,
// for which runsc has no status but only words.
func finishedWithin(err error) bool {
	if runtimecall.IsUnknown(err) {
		return true
	}
	var e *runtimecall.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, words := range []string{"no such process", "is not running", "no such container", "connection refused"} { // the last is of a sandbox that has ended
		if strings.Contains(strings.ToLower(e.Message), words) {
			return true
		}
	}
	return false
}

// isMember reports whether the task runs in the sandbox of another one.
func (t *task) isMember() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.journal.Member
}

// signalWaiting is for containers whose sandbox waits. Without this one it would wait for
// ever: so a kill ends it, with all that are to go on in it. Other signals have no process
// to act on them.
func (k *ownKernel) signalWaiting(sig unix.Signal) error {
	if sig != unix.SIGKILL {
		return nil
	}
	owner := k.owner()
	if owner == nil {
		return errFinished
	}
	owner.mu.Lock()
	defer owner.mu.Unlock()
	return owner.first.signal(sig)
}

// execGrace is how much longer the runtime may take for an exec that was given up. Only the
// runtime knows what it had the kernel start: killed, it would leave that running.
const execGrace = 10 * time.Second

func (k *ownKernel) startExec(ctx context.Context, p *process, e *execLaunch) (pid int, err error) {
	calling, cancel := context.WithTimeout(k.task.context(), runtimecall.Limit(&k.task.journal.Options))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(execGrace, cancel) })()
	innerFile := e.pidFile + ".inner"
	e.files = append(e.files, innerFile)
	os.Remove(innerFile) // of a killed predecessor
	e.call.Args = slices.Insert(e.call.Args, 1, "--internal-pid-file", innerFile)
	_, err = k.task.call(calling, e.call)
	err = k.awaitExec(calling, e, err)
	var inside insider
	if inner, _ := readPIDFile(innerFile); inner != 0 { // it is written before the other pid file
		inside = k.insider(inner)
	}
	if err == nil {
		pid, err = k.task.execs.running(calling, p, e, inside)
	}
	if inside.pid != 0 && (err != nil || ctx.Err() != nil) {
		k.killGivenUp(inside)
	}
	return pid, err
}

// killGivenUp ends a process of the container's own kernel.
func (k *ownKernel) killGivenUp(inside insider) {
	ctx, cancel := context.WithTimeout(k.task.context(), cleanupTimeout)
	defer cancel()
	if err := inside.signal(ctx, unix.SIGKILL); err != nil && !errors.Is(err, errFinished) {
		log.G(ctx).WithError(err).Warn("Failed to kill abandoned exec process")
	}
}

// killLeftovers kills the exec itself: what was killed is the runtime's call that waited for it.
func (k *ownKernel) killLeftovers(exec journal.Exec, _ int) {
	if exec.Inside != 0 {
		go k.killGivenUp(k.insider(exec.Inside))
	}
}

// startPoll is the pause between two looks at the files of an exec.
const startPoll = 10 * time.Millisecond

// awaitExec takes what came of an exec's call and waits on where the runtime gave up.
// runsc starts a child that starts the exec, and waits for that no longer than ten
// seconds, which a busy node may need. It then fails without a word and leaves the
// child at its work, so that the exec would run unnoticed.
func (k *ownKernel) awaitExec(ctx context.Context, e *execLaunch, failed error) error {
	var without *runtimecall.Error
	if !errors.As(failed, &without) || without.Message != "" {
		return failed
	}
	child, pidfd := childWith(e.pidFile)
	if child != 0 {
		defer unix.Close(pidfd)
	}
	for ended := child == 0; ; ended = processes.HasEnded(pidfd, startPoll) {
		// The child writes its own pid, which may be half written while it is there.
		if pid, err := readPIDFile(e.pidFile); err == nil && (pid == child || child == 0) {
			return nil
		}
		if ended {
			without.Message = runtimecall.Message(runtimecall.ReadTail(e.call.LogFile))
			return without
		}
		if ctx.Err() != nil {
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) // it may have ended
			processes.HasEnded(pidfd, processes.KilledTimeout)
			return e.call.Aborted(ctx, runtimecall.ReadTail(e.call.LogFile))
		}
	}
}

// childWith returns the child of this process, and a pidfd of it, that has an argument;
// 0 if there is none.
func childWith(argument string) (pid, pidfd int) {
	for _, pid := range procfs.Children(os.Getpid()) {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if slices.Contains(processes.Arguments(pid), argument) {
			return pid, pidfd
		}
		unix.Close(pidfd)
	}
	return 0, -1
}

// sandboxRestore is the starter of containers whose sandbox is restored as one. The first of
// them makes the sandbox, which waits until all the others have followed; only then all of
// them go on.
type sandboxRestore struct{ newStart }

func (r sandboxRestore) prepare(l *firstLaunch) error {
	j := &r.task.journal
	l.call.Args = append([]string{"restore", "--image-path", j.Checkpoint}, flagsOf(&j.Options)...)
	if bundle.Read(j.Bundle).IsMember() {
		return r.captureStderr(l) // the first one's call has the other flags
	}
	if r.knows("-background", "help", "restore") {
		// Containers go on while their memory is still being read.
		l.call.Args = append(l.call.Args, "--background")
	}
	if r.knows("-restore-spec-validation", "flags") {
		// What must be the same was compared before. What the runtime compares beside it, such
		// as the OOM score, is this node's to say.
		l.call.Flags = []string{"--restore-spec-validation=warning"}
	}
	return r.captureStderr(l)
}

func (r sandboxRestore) knows(flag string, help ...string) bool {
	return runtimecall.Knows(r.task.context(), r.task.processes, &r.task.journal.Options, flag, help...)
}
