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
func (x *execs) add(execID string, terminal bool, paths stdioPaths, spec []byte) error {
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
		x.finish(p, Exit{Status: unknownStatus, Unknown: true, ExitedAt: time.Now().UnixNano()})
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

// execIO is what an exec is started with.
type execIO struct {
	call      *call
	files     []string // to be removed once it was started
	pidFile   string
	innerFile string
	stdin     *os.File
	stdio     *stdio
	console   *consoleSocket
	screen    *os.File // where a terminal's output goes
	input     *os.File // where a terminal's input comes from
	taken     bool     // stdin, screen and input have an owner
}

func (e *execIO) close() {
	if e.stdio != nil {
		e.stdio.close()
	}
	if e.console != nil {
		e.console.close()
	}
	for _, f := range e.files {
		os.Remove(f)
	}
	if e.taken {
		return
	}
	for _, f := range []*os.File{e.stdin, e.screen, e.input} {
		if f != nil {
			f.Close()
		}
	}
}

func (x *execs) prepare(p *process) (_ *execIO, retErr error) {
	name := filepath.Join(x.task.dir, "exec-"+strconv.FormatUint(p.serial, 10))
	e := &execIO{pidFile: name + ".pid", innerFile: name + ".inner"}
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
	e.call = &call{logFile: logFile, score: execScore(p.spec)}
	e.call.args = []string{"exec", "--detach", "--process", specFile, "--pid-file", e.pidFile}
	if x.task.journal.Options.OwnKernel {
		e.call.args = append(e.call.args, "--internal-pid-file", e.innerFile)
	}
	if err := x.prepareStdio(e, p); err != nil {
		return nil, err
	}
	e.call.args = append(e.call.args, x.task.id)
	return e, nil
}

func (x *execs) prepareStdio(e *execIO, p *process) (err error) {
	if p.paths.stdin != "" {
		if e.stdin, err = holdOpen(p.paths.stdin); err != nil {
			return err
		}
	}
	if !p.terminal {
		o := &x.task.journal.Options
		e.stdio, err = openStdio(p.paths, diesWithReader, o.IOUID, o.IOGID)
		if err != nil {
			return err
		}
		e.call.stdio = &e.stdio.fds
		return nil
	}
	if e.console, err = newConsoleSocket(); err != nil {
		return err
	}
	e.call.args = append(e.call.args, "--console-socket", e.console.path)
	if p.paths.stdin != "" {
		if e.input, err = openReader(p.paths.stdin); err != nil {
			return err
		}
	}
	if p.paths.stdout == "" {
		return nil
	}
	e.screen, err = openWriter(p.paths.stdout)
	if errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("%s has no reader; open it for reading before the start: %w", p.paths.stdout, errdefs.ErrFailedPrecondition)
	}
	return err
}

func (x *execs) launch(ctx context.Context, p *process) (int, error) {
	e, err := x.prepare(p)
	if err != nil {
		return 0, err
	}
	defer e.close()
	ended := x.task.processes.launch()
	defer ended()
	calling := ctx
	if x.task.journal.Options.OwnKernel {
		var cancel context.CancelFunc
		calling, cancel = outlive(x.task.context(), ctx, ownKernelGrace)
		defer cancel()
	}
	if _, err := x.task.call(calling, e.call); err != nil {
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
// for an exec that nobody wants any more. What it has told that kernel to start is
// known to nobody but itself: killed, it would leave that running.
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
func (x *execs) discard(p *process, e *execIO) {
	if x.task.journal.Options.OwnKernel {
		inner, _ := readPIDFile(e.innerFile)
		x.task.within.killExec(inner)
		return
	}
	x.task.mu.Lock()
	cgroup, first := x.task.journal.Cgroup, x.task.first.identity.PID
	x.task.mu.Unlock()
	left := &process{paths: p.paths}
	pid, err := readPIDFile(e.pidFile)
	pids, pidsErr := cgroup.processIDs()
	if err == nil && pidsErr == nil && pid != first && slices.Contains(pids, pid) {
		left.identity, left.session = Process{PID: pid}, execSession(pid, first)
		_ = unix.Kill(pid, unix.SIGKILL) // it may be gone
	}
	killLeftovers(left, cgroup)
}

// running takes over a process that the runtime has started.
func (x *execs) running(ctx context.Context, p *process, e *execIO) (_ int, retErr error) {
	pid, err := readPIDFile(e.pidFile)
	if err != nil {
		return 0, fmt.Errorf("its PID cannot be read: %w", err)
	}
	pidfd, identity, err := identify(pid)
	if err != nil {
		return 0, err
	}
	defer func() {
		if retErr != nil {
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
			unix.Close(pidfd)
		}
	}()
	if err := x.task.processes.adoptSoon(ctx, pid, pidfd); err != nil {
		return 0, fmt.Errorf("the process %d that it reported is not its child", pid)
	}
	var master *os.File
	if e.console != nil {
		if master, err = e.console.receive(); err != nil {
			x.task.processes.forget(pid)
			return 0, err
		}
	}
	inner := 0
	if x.task.journal.Options.OwnKernel {
		inner, _ = readPIDFile(e.innerFile)
	}

	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	p.state, p.abort = running, nil
	p.identity, p.pidfd, p.child, p.inner = identity, pidfd, true, inner
	p.session = execSession(pid, x.task.first.identity.PID)
	p.stdin, p.master = e.stdin, master
	e.taken = true
	if master != nil {
		go copyScreen(master, e.screen)
		if e.input != nil {
			go copyInput(e.input, master)
		}
	}
	if x.task.journal.Execs == nil {
		x.task.journal.Execs = map[string]Process{}
	}
	x.task.journal.Execs[p.execID] = identity
	if err := x.task.save(); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to record exec; a restarted supervisor will not know it")
	}
	if err := x.task.processes.ended(pidfd, func() { x.ended(p) }); err != nil {
		log.G(ctx).WithError(err).Error("Failed to watch exec; its exit will go unnoticed")
	}
	return pid, nil
}

// copyScreen carries a terminal's output to its reader; without one it is
// dropped. It closes both.
func copyScreen(master, screen *os.File) {
	defer master.Close()
	if screen != nil {
		defer screen.Close()
	}
	read := chunkReader(master, false)
	for {
		chunk, n := read()
		if n <= 0 {
			return
		}
		if screen != nil {
			if _, err := screen.Write(chunk[:n]); err != nil {
				screen.Close()
				screen = nil
			}
		}
		buffers.put(chunk)
	}
}

func (x *execs) ended(p *process) {
	exit := Exit{PID: p.identity.PID, ExitedAt: time.Now().UnixNano()}
	status, known := x.task.processes.collect(p.identity, p.pidfd, p.child)
	exit.Status, exit.Unknown = status, !known
	x.finish(p, exit)
}

func (x *execs) finish(p *process, exit Exit) {
	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	p.state, p.exit = stopped, exit
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
	p.closeStdin()
	p.spec = nil
	close(p.done)
	if _, ok := x.task.journal.Execs[p.execID]; ok {
		delete(x.task.journal.Execs, p.execID)
		if err := x.task.save(); err != nil {
			log.G(x.task.context()).WithError(err).Warn("Failed to record exec exit; a restarted supervisor will treat it as running")
		}
	}
}

// delete forgets an ended exec, or one that was never started.
func (x *execs) delete(execID string) (Exit, error) {
	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	p, err := x.task.process(execID)
	if err != nil {
		return Exit{}, err
	}
	switch p.state {
	case created:
		p.state, p.exit = stopped, Exit{Status: unknownStatus, Unknown: true, ExitedAt: time.Now().UnixNano()}
		close(p.done)
	case stopped:
	default:
		return Exit{}, fmt.Errorf("exec %q is running; kill it and wait for its exit before deleting it: %w", execID, errdefs.ErrFailedPrecondition)
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
	cgroup.thaw()
	left := killLeftovers(p, cgroup)
	if state == stopped && left == 0 {
		return errFinished
	}
	return nil
}
