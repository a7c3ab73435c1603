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

// This file supports runtimes that run containers on a separate kernel (gVisor's runsc): the
// containers' processes are not processes of this host. The process that runsc reports is the
// sandbox. It exits with the status of its first container, when that container exits, so the
// supervisor watches the sandbox like any other process. The other containers are members of the
// sandbox; only `runsc wait` reports their exits, so one `runsc wait` runs for each member.

// ownKernel is the kernel of a sandbox. Only the runtime can see and reach its processes.
type ownKernel struct {
	task *task
	// writing is set while a checkpoint of the sandbox is written; the sandbox is paused meanwhile.
	writing atomic.Bool
}

func (k *ownKernel) call(ctx context.Context, c *runtimecall.Call) ([]byte, error) {
	defer k.locks().SweepEnded()
	return c.Invoke(ctx, k.task.processes)
}

func (k *ownKernel) locks() runsc.Locks {
	return runsc.LocksOf(k.task.journal.Options.Root, k.task.id, k.task.journal.Bundle)
}

// adopt accepts a process that is not a child of the supervisor, such as a member's sandbox after a
// take-over.
func (k *ownKernel) adopt(ctx context.Context, l *launch, facts bundle.Facts) (*launched, error) {
	if !facts.IsMember() {
		return l.takeOver(ctx, k.task.processes)
	}
	// The process is the sandbox, which the task of the first container has adopted and will reap.
	got, err := l.takeOver(ctx, nil)
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

// exited does nothing: the removal calls release.
func (k *ownKernel) exited(context.Context) {}

// release always forces the delete: runsc considers a sandbox running until its process is reaped,
// which pid 1 does after a take-over. A forced delete waits for the reaping.
func (k *ownKernel) release(ctx context.Context, unstarted bool) error {
	defer k.locks().Sweep() // also after a failure: the sandbox may have exited
	err := k.task.erase(ctx, true, runsc.RemoveState)
	if err == nil && unstarted { // runsc leaves the socket of a sandbox that was killed during its start
		err = runsc.RemoveState(k.task.journal.Options.Root, k.task.id)
	}
	return err
}

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

// withSandbox returns the exit of a member that ran until its sandbox exited. If the sandbox was
// not killed, the member's exit is unknown.
func withSandbox(sandbox journal.Exit) journal.Exit {
	e := journal.Exit{PID: sandbox.PID, Status: processes.UnknownStatus, Unknown: true, ExitedAt: sandbox.ExitedAt, OOM: sandbox.OOM}
	if sandbox.Status == killedStatus && !sandbox.Unknown {
		e.Status, e.Unknown = killedStatus, false
		e.Why = "the sandbox that runs all containers of the pod was killed"
	}
	return e
}

// sandboxGrace is how long sandboxExit waits for the exit of the sandbox.
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

// owner returns the task of the sandbox's first container; nil if that task was removed.
func (k *ownKernel) owner() *task {
	for _, t := range append(k.sharers(), k.task) {
		if !t.isMember() {
			return t
		}
	}
	return nil
}

// sharers returns the other tasks that run in the same sandbox.
func (k *ownKernel) sharers() []*task {
	sandbox := k.task.journal.Process // it never changes while the container runs
	return slices.DeleteFunc(k.task.supervisor.all(), func(other *task) bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return other == k.task || other.journal.Process != sandbox
	})
}

// claimOOM reports whether a killed member may have run out of memory: the kernel has killed a
// process in the sandbox's cgroup since the member started. The other containers then ignore that
// kill. If the kernel kills a host process that backs a container's process, gVisor kills only that
// container's process.
func (k *ownKernel) claimOOM() bool {
	if !k.task.oom.Killed() {
		return false
	}
	kills := k.task.oom.Count()
	for _, other := range k.sharers() {
		other.mu.Lock()
		// A member that started after the kill already ignores it.
		other.journal.IgnoredOOM = min(other.journal.IgnoredOOM+1, kills)
		other.oom.SetIgnored(other.journal.IgnoredOOM)
		if err := other.save(); err != nil {
			log.G(other.context()).WithError(err).Warn("Failed to record that an out-of-memory kill hit another container; after a restart it counts for this container")
		}
		other.mu.Unlock()
	}
	return true
}

// waitPause is the delay before a failed wait for a running container is repeated.
const waitPause = time.Second

func (k *ownKernel) waitStatus(ctx context.Context) (status uint32, known bool) {
	defer k.locks().SweepEnded()
	for {
		out, err := (&runtimecall.Call{
			Options:     &k.task.journal.Options,
			Args:        []string{"wait", k.task.id},
			DeathSignal: unix.SIGKILL, // a successor of the supervisor starts its own wait
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

func (k *ownKernel) signal(ctx context.Context, sig unix.Signal, all bool) error {
	args := []string{"kill"}
	if all {
		args = append(args, "--all")
	}
	// During a restore or a checkpoint the sandbox may have no process that can receive a signal.
	if sig == unix.SIGKILL && !k.task.isMember() && (k.task.journal.Checkpoint != "" || k.writing.Load()) {
		return k.signalWaiting(sig) // killing the first container ends the sandbox in any case
	}
	err := k.killCall(ctx, append(args, k.task.id, strconv.Itoa(int(sig))))
	var failed *runtimecall.Error
	if k.task.journal.Checkpoint != "" && errors.As(err, &failed) && strings.Contains(failed.Message, "not started") {
		return k.signalWaiting(sig) // the sandbox waits for the other containers of the restore
	}
	return err
}

func (k *ownKernel) innerProcess(pid int) innerProcess {
	return innerProcess{pid: pid, signal: func(ctx context.Context, sig unix.Signal) error {
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

// pids lists the pids of a container in its own kernel.
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

// stats returns statistics that the cgroups of this host do not contain.
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

// finishedWithin reports whether a signal failed because the process is gone; only runsc's message
// shows this cause.
func finishedWithin(err error) bool {
	if runtimecall.IsUnknown(err) {
		return true
	}
	var e *runtimecall.Error
	if !errors.As(err, &e) {
		return false
	}
	for _, words := range []string{"no such process", "is not running", "no such container", "connection refused"} { // the last one means that the sandbox has exited
		if strings.Contains(strings.ToLower(e.Message), words) {
			return true
		}
	}
	return false
}

func (t *task) isMember() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.journal.Member
}

// signalWaiting signals a container while its sandbox waits for a restore or writes a checkpoint. A
// restore would wait for a killed container forever, so SIGKILL kills the sandbox with all its
// containers. Other signals are dropped, because no process could act on them.
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

// execGrace is how much longer the runtime may take after an exec was given up: if the runtime is
// killed before it reports the pid of the started process, that process keeps running.
const execGrace = 10 * time.Second

func (k *ownKernel) startExec(ctx context.Context, p *process, e *execLaunch) (pid int, err error) {
	calling, cancel := context.WithTimeout(k.task.context(), runtimecall.Limit(&k.task.journal.Options))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(execGrace, cancel) })()
	innerFile := e.pidFile + ".inner"
	e.files = append(e.files, innerFile)
	os.Remove(innerFile) // left by a killed predecessor
	e.call.Args = slices.Insert(e.call.Args, 1, "--internal-pid-file", innerFile)
	_, err = k.task.call(calling, e.call)
	err = k.awaitExec(calling, e, err)
	var inside innerProcess
	if inner, _ := readPIDFile(innerFile); inner != 0 { // runsc writes it before the other pid file
		inside = k.innerProcess(inner)
	}
	if err == nil {
		pid, err = k.task.execs.running(calling, p, e, inside)
	}
	if inside.pid != 0 && (err != nil || ctx.Err() != nil) {
		k.killGivenUp(inside)
	}
	return pid, err
}

// killGivenUp kills an exec in the container's own kernel.
func (k *ownKernel) killGivenUp(inside innerProcess) {
	ctx, cancel := context.WithTimeout(k.task.context(), cleanupTimeout)
	defer cancel()
	if err := inside.signal(ctx, unix.SIGKILL); err != nil && !errors.Is(err, errFinished) {
		log.G(ctx).WithError(err).Warn("Failed to kill abandoned exec process")
	}
}

// killLeftovers kills the exec itself: the caller has killed only the runtime call that waited for
// the exec.
func (k *ownKernel) killLeftovers(exec journal.Exec, _ int) {
	if exec.Inside != 0 {
		go k.killGivenUp(k.innerProcess(exec.Inside))
	}
}

// startPoll is the interval of checks of an exec's files.
const startPoll = 10 * time.Millisecond

// awaitExec handles the result of an exec's call and waits longer than the runtime did. runsc
// starts a child, which starts the exec, and waits ten seconds for the child, which is too short on
// a busy node. runsc then fails without a message, and the child may still start the exec.
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
		// The child writes its own pid; while it runs, the file may be incomplete.
		if pid, err := readPIDFile(e.pidFile); err == nil && (pid == child || child == 0) {
			return nil
		}
		if ended {
			without.Message = runtimecall.Message(runtimecall.ReadTail(e.call.LogFile))
			return without
		}
		if ctx.Err() != nil {
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) // it may have exited
			processes.HasEnded(pidfd, processes.KilledTimeout)
			return e.call.Aborted(ctx, runtimecall.ReadTail(e.call.LogFile))
		}
	}
}

// childWith returns the child of this process that has the argument, and its pidfd; pid is 0 if
// it does not exist.
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

// sandboxRestore is the starter of containers of a restored sandbox. The first container creates
// the sandbox, which waits for all others; then all of them resume.
type sandboxRestore struct{ newStart }

func (r sandboxRestore) prepare(l *firstLaunch) error {
	j := &r.task.journal
	l.call.Args = append([]string{"restore", "--image-path", j.Checkpoint}, flagsOf(&j.Options)...)
	if bundle.Read(j.Bundle).IsMember() {
		return r.captureStderr(l) // the first container's call has the other flags
	}
	if r.knows("-background", "help", "restore") {
		// Containers resume before all of their memory is read.
		l.call.Args = append(l.call.Args, "--background")
	}
	if r.knows("-restore-spec-validation", "flags") {
		// The daemon has compared the fields that must be equal. Other fields that the runtime
		// compares, such as the OOM score, may differ on this node.
		l.call.Flags = []string{"--restore-spec-validation=warning"}
	}
	return r.captureStderr(l)
}

func (r sandboxRestore) knows(flag string, help ...string) bool {
	return runtimecall.Knows(r.task.context(), r.task.processes, &r.task.journal.Options, flag, help...)
}
