package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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

// execs are the processes that run in a container besides the first process.
type execs struct {
	task *task

	// byID and serial are guarded by task.mu.
	byID   map[string]*process
	serial uint64 // of the newest exec
}

// add registers a process to be run in the container; spec is an OCI process.
func (x *execs) add(execID string, terminal bool, paths stdio.Paths, spec []byte) error {
	spec, score, err := execSpec(spec, terminal)
	if err != nil {
		return err
	}
	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	if x.task.first.state != running {
		return x.task.notRunning()
	}
	if _, ok := x.byID[execID]; ok {
		return fmt.Errorf("exec %q: %w", execID, errdefs.ErrAlreadyExists)
	}
	p := newProcess(execID, terminal, paths)
	x.serial++
	p.spec, p.score, p.serial = spec, score, x.serial
	x.byID[execID] = p
	return nil
}

// execSpec sets the terminal of an OCI process and keeps all other fields, including unknown ones.
// It also returns the oom_score_adj, or nil.
func execSpec(spec []byte, terminal bool) (changed []byte, score *int, err error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(spec, &fields); err != nil {
		return nil, nil, fmt.Errorf("the exec spec is not an OCI process: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if len(fields["args"]) == 0 {
		return nil, nil, fmt.Errorf("the exec spec has no args: %w", errdefs.ErrInvalidArgument)
	}
	fields["terminal"] = json.RawMessage(strconv.FormatBool(terminal))
	_ = json.Unmarshal(fields["oomScoreAdj"], &score) // the runtime refuses an invalid score
	changed, err = json.Marshal(fields)
	return changed, score, err
}

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
		return nil, x.task.notRunning()
	case x.task.paused:
		return nil, fmt.Errorf("container %q is paused: %w", x.task.id, errdefs.ErrFailedPrecondition)
	}
	p.state, p.abort = starting, abort
	return p, nil
}

func (x *execs) prepare(p *process) (_ *execLaunch, retErr error) {
	name := filepath.Join(x.task.dir, "exec-"+strconv.FormatUint(p.serial, 10))
	e := &execLaunch{launch: launch{pidFile: name + ".pid"}}
	e.drop = e.closeTerminal
	defer func() {
		if retErr != nil {
			e.close()
		}
	}()
	specFile, logFile := name+".json", name+".log"
	e.files = []string{e.pidFile, specFile, logFile}
	os.Remove(e.pidFile) // left by a killed predecessor: the pid in it may belong to another process now
	if err := os.WriteFile(specFile, p.spec, 0o600); err != nil {
		return nil, err
	}
	e.call = &runtimecall.Call{LogFile: logFile, Score: p.score}
	e.call.Args = []string{"exec", "--detach", "--process", specFile, "--pid-file", e.pidFile}
	if err := e.openIO(p, stdio.DiesWithReader, &x.task.journal.Options); err != nil {
		return nil, err
	}
	if err := e.openTerminal(p); err != nil {
		return nil, err
	}
	e.call.Args = append(e.call.Args, x.task.id)
	return e, nil
}

func (x *execs) launch(ctx context.Context, p *process) (int, error) {
	e, err := x.prepare(p)
	if err != nil {
		return 0, err
	}
	defer e.close()
	ended := x.task.processes.Launch(x.task.journal.ID)
	defer ended()
	return x.task.kernel.startExec(ctx, p, e)
}

func (x *execs) running(ctx context.Context, p *process, e *execLaunch, inside innerProcess) (int, error) {
	const but = "the runtime reported an exec, but %w"
	got, err := e.takeOverChild(ctx, x.task.processes)
	if err != nil {
		return 0, fmt.Errorf(but, err)
	}
	if got.master, err = e.terminal(); err != nil {
		_ = unix.PidfdSendSignal(got.pidfd, unix.SIGKILL, nil, 0)
		got.release(x.task.processes)
		return 0, fmt.Errorf(but, err)
	}

	x.task.mu.Lock()
	defer x.task.mu.Unlock()
	p.run(got, e.stdin)
	p.inside, p.session = inside.signal, execSession(got.identity.PID, x.task.first.identity.PID)
	e.taken = true
	if got.master != nil {
		go copyScreen(got.master, e.screen)
		if e.input != nil {
			go output.Copy(e.input, func(chunk []byte) error { _, err := got.master.Write(chunk); return err })
		}
	}
	if x.task.journal.Execs == nil {
		x.task.journal.Execs = map[string]journal.Exec{}
	}
	x.task.journal.Execs[p.execID] = journal.Exec{Process: got.identity, Inside: inside.pid}
	if err := x.task.save(); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to record exec; a restarted supervisor will not kill it")
	}
	if err := x.task.processes.Ended(got.pidfd, func() { x.ended(p) }); err != nil {
		log.G(ctx).WithError(err).Error("Failed to watch exec; its exit will go unnoticed")
	}
	return got.identity.PID, nil
}

// copyScreen copies a terminal's output to screen, or drops it if screen is nil, and closes both.
func copyScreen(master, screen *os.File) {
	if screen != nil {
		defer screen.Close()
	}
	output.Copy(master, func(chunk []byte) error {
		if screen != nil {
			_, _ = screen.Write(chunk)
		}
		return nil // the program must not block on a reader that left
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

// delete forgets an exec that exited or was never started.
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

// signal sends a signal to an exec. On the node's kernel, SIGKILL also kills the processes that the
// exec left behind, even after the exec has exited: its session, its descendants and the processes
// that have its output open.
func (x *execs) signal(ctx context.Context, execID string, sig unix.Signal) error {
	x.task.mu.Lock()
	p, err := x.task.process(execID)
	if err != nil {
		x.task.mu.Unlock()
		return err
	}
	state, abort, cgroup, inside := p.state, p.abort, x.task.journal.Cgroup, p.inside
	if state == running && inside == nil {
		err = p.signal(sig)
	}
	x.task.mu.Unlock()
	switch {
	case state == starting && sig == unix.SIGKILL:
		abort()
		return nil
	case state < running:
		return fmt.Errorf("exec %q is not running: %w", execID, errdefs.ErrFailedPrecondition)
	case inside != nil && state == running:
		return inside(ctx, sig)
	case inside != nil:
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

// execSession returns the session that a runtime created for an exec; the session's leader may be a
// process other than the exec's first one (crun). It returns 0 if the exec is in the session of the
// supervisor or of the container's first process.
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
