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

// addExec remembers a process that is to run in the container; spec is an OCI
// process.
func (t *task) addExec(execID string, terminal bool, paths stdioPaths, spec []byte) error {
	spec, err := execSpec(spec, terminal)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first.state != running {
		return fmt.Errorf("container %q is not running: %w", t.id, errdefs.ErrFailedPrecondition)
	}
	if _, ok := t.execs[execID]; ok {
		return fmt.Errorf("exec %q: %w", execID, errdefs.ErrAlreadyExists)
	}
	p := newProcess(execID, terminal, paths)
	t.serial++
	p.spec, p.serial = spec, t.serial
	t.execs[execID] = p
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

// startExec starts a process that addExec remembered, once.
func (t *task) startExec(execID string) (int, error) {
	ctx, abort := context.WithCancel(t.context())
	defer abort()
	p, err := t.beginExec(execID, abort)
	if err != nil {
		return 0, err
	}
	pid, err := t.launchExec(ctx, p)
	if err != nil {
		t.finishExec(p, Exit{Status: unknownStatus, Unknown: true, ExitedAt: time.Now().UnixNano()})
		return 0, err
	}
	return pid, nil
}

func (t *task) beginExec(execID string, abort context.CancelFunc) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.process(execID)
	if err != nil {
		return nil, err
	}
	switch {
	case p.state != created:
		return nil, fmt.Errorf("exec %q was already started: %w", execID, errdefs.ErrFailedPrecondition)
	case t.first.state != running:
		return nil, fmt.Errorf("container %q is not running: %w", t.id, errdefs.ErrFailedPrecondition)
	case t.paused:
		return nil, fmt.Errorf("container %q is paused: %w", t.id, errdefs.ErrFailedPrecondition)
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

func (t *task) prepareExec(p *process) (_ *execIO, retErr error) {
	name := filepath.Join(t.dir, "exec-"+strconv.FormatUint(p.serial, 10))
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
	if t.journal.Options.OwnKernel {
		e.call.args = append(e.call.args, "--internal-pid-file", e.innerFile)
	}
	if err := t.prepareExecStdio(e, p); err != nil {
		return nil, err
	}
	e.call.args = append(e.call.args, t.id)
	return e, nil
}

func (t *task) prepareExecStdio(e *execIO, p *process) (err error) {
	if p.paths.stdin != "" {
		if e.stdin, err = holdOpen(p.paths.stdin); err != nil {
			return err
		}
	}
	if !p.terminal {
		o := &t.journal.Options
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

func (t *task) launchExec(ctx context.Context, p *process) (int, error) {
	e, err := t.prepareExec(p)
	if err != nil {
		return 0, err
	}
	defer e.close()
	ended := t.processes.launch()
	defer ended()
	calling := ctx
	if t.journal.Options.OwnKernel {
		var cancel context.CancelFunc
		calling, cancel = outlive(t.context(), ctx, ownKernelGrace)
		defer cancel()
	}
	if _, err := t.call(calling, e.call); err != nil {
		t.discardExec(p, e)
		return 0, err
	}
	pid, err := t.runningExec(calling, p, e)
	if err != nil {
		t.discardExec(p, e)
		return 0, fmt.Errorf("the runtime reported an exec, but %w", err)
	}
	if ctx.Err() != nil {
		t.killInner(p.inner)
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

// killInner ends a process of the container's own kernel.
func (t *task) killInner(pid int) {
	if pid == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(t.context(), cleanupTimeout)
	defer cancel()
	if err := t.signalInner(ctx, pid, unix.SIGKILL); err != nil && !errors.Is(err, errFinished) {
		log.G(ctx).WithError(err).Warn("Failed to kill abandoned exec process")
	}
}

// discardExec kills what a runtime started all the same that failed, hung or
// did not say what: it is known by its pid file, if that is true, or because it
// holds the exec's output.
func (t *task) discardExec(p *process, e *execIO) {
	if t.journal.Options.OwnKernel {
		inner, _ := readPIDFile(e.innerFile)
		t.killInner(inner)
		return
	}
	t.mu.Lock()
	cgroup, first := t.journal.Cgroup, t.first.identity.PID
	t.mu.Unlock()
	left := &process{paths: p.paths}
	pid, err := readPIDFile(e.pidFile)
	pids, pidsErr := cgroup.processIDs()
	if err == nil && pidsErr == nil && pid != first && slices.Contains(pids, pid) {
		left.identity, left.session = Process{PID: pid}, execSession(pid, first)
		_ = unix.Kill(pid, unix.SIGKILL) // it may be gone
	}
	killLeftovers(left, cgroup)
}

// runningExec takes over a process that the runtime has started.
func (t *task) runningExec(ctx context.Context, p *process, e *execIO) (_ int, retErr error) {
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
	if err := t.processes.adoptSoon(ctx, pid, pidfd); err != nil {
		return 0, fmt.Errorf("the process %d that it reported is not its child", pid)
	}
	var master *os.File
	if e.console != nil {
		if master, err = e.console.receive(); err != nil {
			t.processes.forget(pid)
			return 0, err
		}
	}
	inner := 0
	if t.journal.Options.OwnKernel {
		inner, _ = readPIDFile(e.innerFile)
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	p.state, p.abort = running, nil
	p.identity, p.pidfd, p.child, p.inner = identity, pidfd, true, inner
	p.session = execSession(pid, t.first.identity.PID)
	p.stdin, p.master = e.stdin, master
	e.taken = true
	if master != nil {
		go copyScreen(master, e.screen)
		if e.input != nil {
			go copyInput(e.input, master)
		}
	}
	if t.journal.Execs == nil {
		t.journal.Execs = map[string]Process{}
	}
	t.journal.Execs[p.execID] = identity
	if err := t.save(); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to record exec; a restarted supervisor will not know it")
	}
	if err := t.processes.ended(pidfd, func() { t.endedExec(p) }); err != nil {
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

func (t *task) endedExec(p *process) {
	exit := Exit{PID: p.identity.PID, ExitedAt: time.Now().UnixNano()}
	status, known := t.processes.collect(p.identity, p.pidfd, p.child)
	exit.Status, exit.Unknown = status, !known
	t.finishExec(p, exit)
}

func (t *task) finishExec(p *process, exit Exit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.state, p.exit = stopped, exit
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
	p.closeStdin()
	p.spec = nil
	close(p.done)
	if _, ok := t.journal.Execs[p.execID]; ok {
		delete(t.journal.Execs, p.execID)
		if err := t.save(); err != nil {
			log.G(t.context()).WithError(err).Warn("Failed to record exec exit; a restarted supervisor will treat it as running")
		}
	}
}

// deleteExec forgets an ended exec, or one that was never started.
func (t *task) deleteExec(execID string) (Exit, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.process(execID)
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
	delete(t.execs, execID)
	return p.exit, nil
}

// signalExec sends a signal to an exec. SIGKILL also goes to what the exec left
// behind: its session, its descendants, and whoever holds its output open, also
// when it has ended itself.
func (t *task) signalExec(ctx context.Context, execID string, sig unix.Signal) error {
	t.mu.Lock()
	p, err := t.process(execID)
	if err != nil {
		t.mu.Unlock()
		return err
	}
	state, abort, cgroup, inner := p.state, p.abort, t.journal.Cgroup, p.inner
	if state == running && inner == 0 {
		err = p.signal(sig)
	}
	t.mu.Unlock()
	switch {
	case state == starting && sig == unix.SIGKILL:
		abort()
		return nil
	case state < running:
		return fmt.Errorf("exec %q is not running: %w", execID, errdefs.ErrFailedPrecondition)
	case inner != 0 && state == running:
		return t.signalInner(ctx, inner, sig)
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
