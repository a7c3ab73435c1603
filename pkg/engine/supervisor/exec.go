package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/output"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// execs are the processes that run in a container beside its first.
type execs struct {
	task *task

	// guarded by task.mu
	byID   map[string]*process
	serial uint64 // of the newest
}

// add remembers a process that is to run in the container; spec is an OCI
// process.
func (x *execs) add(execID string, terminal bool, paths stdio.Paths, spec []byte) error {
	spec, err := execSpec(spec, terminal)
	if err != nil {
		return err
	}
	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	if x.task.first.state != running {
		return fmt.Errorf("container %q is not running: %w", x.task.id, errdefs.ErrFailedPrecondition)
	}
	if _, ok := x.byID[execID]; ok {
		return fmt.Errorf("exec %q: %w", execID, errdefs.ErrAlreadyExists)
	}
	p := newProcess(execID, terminal, paths)
	x.serial++
	p.spec, p.serial = spec, x.serial
	x.byID[execID] = p
	return nil
}

// execSpec sets the terminal of an OCI process, whose other fields it leaves as
// they are, known or not.
func execSpec(spec []byte, terminal bool) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(spec, &fields); err != nil {
		return nil, fmt.Errorf("the exec spec is not an OCI process: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if len(fields["args"]) == 0 {
		return nil, fmt.Errorf("the exec spec has no args: %w", errdefs.ErrInvalidArgument)
	}
	fields["terminal"] = json.RawMessage(strconv.FormatBool(terminal))
	return json.Marshal(fields)
}

// execScore is the oom_score_adj of an OCI process; nil if it names none.
func execScore(spec []byte) *int {
	var process struct {
		OOMScoreAdj *int `json:"oomScoreAdj"`
	}
	_ = json.Unmarshal(spec, &process) // the runtime's to refuse
	return process.OOMScoreAdj
}

// start starts a process that add remembered, once.
func (x *execs) start(execID string) (int, error) {
	ctx, abort := context.WithCancel(x.task.context())
	defer abort()
	p, err := x.begin(execID, abort)
	if err != nil {
		return 0, err
	}
	pid, err := x.launch(ctx, p)
	if err != nil {
		x.finish(p, journal.Exit{Status: processes.UnknownStatus, Unknown: true, ExitedAt: time.Now().UnixNano()})
		return 0, err
	}
	return pid, nil
}

func (x *execs) begin(execID string, abort context.CancelFunc) (*process, error) {
	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	p, err := x.task.process(execID)
	if err != nil {
		return nil, err
	}
	switch {
	case p.state != created:
		return nil, fmt.Errorf("exec %q was already started: %w", execID, errdefs.ErrFailedPrecondition)
	case x.task.first.state != running:
		return nil, fmt.Errorf("container %q is not running: %w", x.task.id, errdefs.ErrFailedPrecondition)
	case x.task.paused:
		return nil, fmt.Errorf("container %q is paused: %w", x.task.id, errdefs.ErrFailedPrecondition)
	}
	p.state, p.abort = starting, abort
	return p, nil
}

type execLaunch struct {
	launch
	innerFile string
	screen    *os.File // where a terminal's output goes
	input     *os.File // where a terminal's input comes from
}

func (x *execs) prepare(p *process) (_ *execLaunch, retErr error) {
	name := filepath.Join(x.task.dir, "exec-"+strconv.FormatUint(p.serial, 10))
	e := &execLaunch{launch: launch{pidFile: name + ".pid"}, innerFile: name + ".inner"}
	e.drop = e.closeTerminal
	defer func() {
		if retErr != nil {
			e.close()
		}
	}()
	specFile, logFile := name+".json", name+".log"
	e.files = []string{e.pidFile, e.innerFile, specFile, logFile}
	if err := os.WriteFile(specFile, p.spec, 0o600); err != nil {
		return nil, err
	}
	e.call = &runtimecall.Call{LogFile: logFile, Score: execScore(p.spec)}
	e.call.Args = []string{"exec", "--detach", "--process", specFile, "--pid-file", e.pidFile}
	if x.task.journal.Options.OwnKernel {
		e.call.Args = append(e.call.Args, "--internal-pid-file", e.innerFile)
	}
	if err := e.openIO(p, stdio.DiesWithReader, &x.task.journal.Options); err != nil {
		return nil, err
	}
	if err := e.openTerminal(p); err != nil {
		return nil, err
	}
	e.call.Args = append(e.call.Args, x.task.id)
	return e, nil
}

// openTerminal opens what a terminal is read into and written from.
func (e *execLaunch) openTerminal(p *process) (err error) {
	if p.terminal && p.paths.Stdin != "" {
		if e.input, err = stdio.OpenReader(p.paths.Stdin); err != nil {
			return err
		}
	}
	if !p.terminal || p.paths.Stdout == "" {
		return nil
	}
	e.screen, err = stdio.OpenWriter(p.paths.Stdout)
	if errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("%s has no reader; open it for reading before the start: %w", p.paths.Stdout, errdefs.ErrFailedPrecondition)
	}
	return err
}

func (e *execLaunch) closeTerminal() {
	for _, f := range []*os.File{e.screen, e.input} {
		if f != nil {
			f.Close()
		}
	}
}

func (x *execs) launch(ctx context.Context, p *process) (int, error) {
	e, err := x.prepare(p)
	if err != nil {
		return 0, err
	}
	defer e.close()
	ended := x.task.processes.Launch(x.task.journal.ID)
	defer ended()
	calling := ctx
	if x.task.journal.Options.OwnKernel {
		var cancel context.CancelFunc
		calling, cancel = outlive(x.task.context(), ctx, ownKernelGrace)
		defer cancel()
	}
	calling, cancel := context.WithTimeout(calling, runtimecall.Limit(&x.task.journal.Options))
	defer cancel()
	_, err = x.task.call(calling, e.call)
	if x.task.journal.Options.OwnKernel {
		err = x.task.within.awaitExec(calling, e, err)
	}
	if err != nil {
		x.discard(p, e)
		return 0, err
	}
	pid, err := x.running(calling, p, e)
	if err != nil {
		x.discard(p, e)
		return 0, fmt.Errorf("the runtime reported an exec, but %w", err)
	}
	if ctx.Err() != nil {
		x.task.within.killExec(p.inner)
	}
	return pid, nil
}

// ownKernelGrace is how much longer a runtime with a kernel of its own may take
// for an exec that was given up. Only the runtime knows what it had that kernel start: killed, it would leave that running.
const ownKernelGrace = 10 * time.Second

// outlive returns a context that ends some time after ctx does, and at once with
// parent.
func outlive(parent, ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(parent)
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel() }
}

// killExec ends a process of the container's own kernel.
func (k *ownKernel) killExec(pid int) {
	if pid == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(k.task.context(), cleanupTimeout)
	defer cancel()
	if err := k.signalExec(ctx, pid, unix.SIGKILL); err != nil && !errors.Is(err, errFinished) {
		log.G(ctx).WithError(err).Warn("Failed to kill abandoned exec process")
	}
}

// discard kills what a runtime started all the same that failed, hung or
// did not say what: it is known by its pid file, if that is true, or because it
// holds the exec's output.
func (x *execs) discard(p *process, e *execLaunch) {
	if x.task.journal.Options.OwnKernel {
		inner, _ := readPIDFile(e.innerFile)
		x.task.within.killExec(inner)
		return
	}
	x.task.mu.Lock()
	cgroup, first := x.task.journal.Cgroup, x.task.first.identity.PID
	x.task.mu.Unlock()
	leader, session := 0, 0
	pid, err := readPIDFile(e.pidFile)
	pids, pidsErr := cgroup.ProcessIDs()
	if err == nil && pidsErr == nil && pid != first && slices.Contains(pids, pid) {
		leader, session = pid, execSession(pid, first)
		_ = unix.Kill(pid, unix.SIGKILL) // it may be gone
	}
	cgroup.KillLeftovers(leader, session, p.paths.Stdout, p.paths.Stderr)
}

// running takes over a process that the runtime has started.
func (x *execs) running(ctx context.Context, p *process, e *execLaunch) (_ int, retErr error) {
	got, err := e.takeOver(ctx, x.task.processes.AdoptSoon)
	if err != nil {
		return 0, err
	}
	defer func() {
		if retErr != nil {
			got.letGo(x.task.processes)
		}
	}()
	if !got.child {
		return 0, got.notChild()
	}
	if got.master, err = e.terminal(); err != nil {
		_ = unix.PidfdSendSignal(got.pidfd, unix.SIGKILL, nil, 0)
		return 0, err
	}
	inner := 0
	if x.task.journal.Options.OwnKernel {
		inner, _ = readPIDFile(e.innerFile)
	}

	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	p.run(got, e.stdin)
	p.inner, p.session = inner, execSession(got.identity.PID, x.task.first.identity.PID)
	e.taken = true
	if got.master != nil {
		go copyScreen(got.master, e.screen)
		if e.input != nil {
			go output.Copy(e.input, func(chunk []byte) error { _, err := got.master.Write(chunk); return err })
		}
	}
	if x.task.journal.Execs == nil {
		x.task.journal.Execs = map[string]processes.Process{}
	}
	x.task.journal.Execs[p.execID] = got.identity
	if err := x.task.save(); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to record exec; a restarted supervisor will not know it")
	}
	if err := x.task.processes.Ended(got.pidfd, func() { x.ended(p) }); err != nil {
		log.G(ctx).WithError(err).Error("Failed to watch exec; its exit will go unnoticed")
	}
	return got.identity.PID, nil
}

// copyScreen carries a terminal's output to its reader; without one it is
// dropped. It closes both.
func copyScreen(master, screen *os.File) {
	if screen != nil {
		defer screen.Close()
	}
	output.Copy(master, func(chunk []byte) error {
		if screen != nil {
			if _, err := screen.Write(chunk); err != nil {
				screen.Close()
				screen = nil
			}
		}
		return nil // the program must not wait for a reader that left
	})
}

func (x *execs) ended(p *process) {
	x.finish(p, exitOf(x.task.processes, p.identity, p.pidfd, p.child))
}

func (x *execs) finish(p *process, exit journal.Exit) {
	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	p.stop(exit)
	p.spec = nil
	if _, ok := x.task.journal.Execs[p.execID]; ok {
		delete(x.task.journal.Execs, p.execID)
		if err := x.task.save(); err != nil {
			log.G(x.task.context()).WithError(err).Warn("Failed to record exec exit; a restarted supervisor will treat it as running")
		}
	}
}

// delete forgets an ended exec, or one that was never started.
func (x *execs) delete(execID string) (journal.Exit, error) {
	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	p, err := x.task.process(execID)
	if err != nil {
		return journal.Exit{}, err
	}
	switch p.state {
	case created:
		p.stop(journal.Exit{Status: processes.UnknownStatus, Unknown: true, ExitedAt: time.Now().UnixNano()})
	case stopped:
	default:
		return journal.Exit{}, fmt.Errorf("exec %q is running; kill it and wait for its exit before deleting it: %w", execID, errdefs.ErrFailedPrecondition)
	}
	delete(x.byID, execID)
	return p.exit, nil
}

// signal sends a signal to an exec. SIGKILL also goes to what the exec left
// behind: its session, its descendants, and whoever holds its output open, also
// when it has ended itself.
func (x *execs) signal(ctx context.Context, execID string, sig unix.Signal) error {
	x.task.mu.Lock()
	p, err := x.task.process(execID)
	if err != nil {
		x.task.mu.Unlock()
		return err
	}
	state, abort, cgroup, inner := p.state, p.abort, x.task.journal.Cgroup, p.inner
	if state == running && inner == 0 {
		err = p.signal(sig)
	}
	x.task.mu.Unlock()
	switch {
	case state == starting && sig == unix.SIGKILL:
		abort()
		return nil
	case state < running:
		return fmt.Errorf("exec %q is not running: %w", execID, errdefs.ErrFailedPrecondition)
	case inner != 0 && state == running:
		return x.task.within.signalExec(ctx, inner, sig)
	case inner != 0:
		return errFinished
	case sig != unix.SIGKILL:
		if state == stopped {
			return errFinished
		}
		return err
	}
	cgroup.Thaw()
	left := cgroup.KillLeftovers(p.identity.PID, p.session, p.paths.Stdout, p.paths.Stderr)
	if state == stopped && left == 0 {
		return errFinished
	}
	return nil
}

// execSession is the session that a runtime made for an exec, which its first
// process need not lead (crun's); 0 when it made none, but left the exec in
// ours or in that of the container's first process.
func execSession(exec, first int) int {
	stat, err := procfs.StatOf(exec)
	if err != nil {
		return 0
	}
	for _, other := range []int{0, first} {
		if session, err := unix.Getsid(other); err != nil || stat.Session == session {
			return 0
		}
	}
	return stat.Session
}
