package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/crilog"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/output"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// launch is a call of the runtime that starts a container's first process or an exec. It owns the
// files that it opened for the process until the process is taken over.
type launch struct {
	call    *runtimecall.Call
	pidFile string
	files   []string             // removed when the launch is over
	stdin   *os.File             // the supervisor's end
	stdio   *stdio.Ends          // the process's ends, without a terminal
	console *stdio.ConsoleSocket // with a terminal
	drop    func()               // closes the files that only this kind of launch has
	taken   bool                 // stdin and the files that drop closes have another owner
}

// openIO opens the stdio of a process and passes it to the call.
func (l *launch) openIO(p *process, mode stdio.OutputMode, o *journal.Options) (err error) {
	if p.paths.Stdin != "" {
		if l.stdin, err = stdio.HoldOpen(p.paths.Stdin); err != nil {
			return err
		}
	}
	if p.terminal {
		if l.console, err = stdio.NewConsoleSocket(); err != nil {
			return err
		}
		l.call.Args = append(l.call.Args, "--console-socket", l.console.Path)
		return nil
	}
	if l.stdio, err = stdio.Open(p.paths, mode, o.IOUID, o.IOGID); err != nil {
		return err
	}
	l.call.Stdio = &l.stdio.FDs
	return nil
}

// terminal returns the terminal that the runtime created; nil for a process without a terminal.
func (l *launch) terminal() (*os.File, error) {
	if l.console == nil {
		return nil, nil
	}
	return l.console.Receive()
}

func (l *launch) close() {
	if l.stdio != nil {
		l.stdio.Close()
	}
	if l.console != nil {
		l.console.Close()
	}
	for _, f := range l.files {
		os.Remove(f)
	}
	l.discard()
}

// discard closes stdin and the files of drop unless they have another owner.
func (l *launch) discard() {
	if l.taken {
		return
	}
	l.taken = true
	if l.drop != nil {
		l.drop()
	}
	if l.stdin != nil {
		l.stdin.Close()
	}
}

// firstLaunch is the launch of a container's first process.
type firstLaunch struct {
	launch
	output  *output.Output
	sources []output.Source
	// stderr receives the errors of the runtime if the container has neither a stderr nor a
	// terminal. It is nil otherwise, and if CRIU restores the container.
	stderr *os.File
}

func (l *firstLaunch) close() {
	if l.stderr != nil {
		l.stderr.Close()
	}
	l.launch.close()
}

// stderrOf returns what the runtime wrote to the container's stderr, or to the file in its place.
func (l *firstLaunch) stderrOf() []byte {
	for _, s := range l.sources {
		if s.Name == crilog.Stderr {
			return runtimecall.ReadWaiting(s.File)
		}
	}
	return runtimecall.Captured(l.stderr)
}

// execLaunch is the launch of an exec.
type execLaunch struct {
	launch
	screen *os.File // receives the output of a terminal
	input  *os.File // the source of a terminal's input
}

// openTerminal opens the FIFOs that the terminal's output and input pass through.
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

// launched is a process that the runtime has started.
type launched struct {
	identity processes.Process
	pidfd    int
	child    bool // the supervisor is its parent
	member   bool // the process is the sandbox of another container
	master   *os.File
}

// takeOver identifies the process in the runtime's pid file, and tries to adopt it if p is not nil.
func (l *launch) takeOver(ctx context.Context, p *processes.Set) (*launched, error) {
	pid, err := readPIDFile(l.pidFile)
	if err != nil {
		return nil, fmt.Errorf("the process's PID cannot be read: %w", err)
	}
	pidfd, identity, err := processes.Identify(pid)
	if err != nil {
		return nil, err
	}
	return &launched{identity: identity, pidfd: pidfd, child: p != nil && p.AdoptSoon(ctx, pid, pidfd) == nil}, nil
}

// takeOverChild is takeOver for a process that must be a child of the supervisor. A process that is
// not a child may be unrelated to the container, and must be neither watched nor killed.
func (l *launch) takeOverChild(ctx context.Context, p *processes.Set) (*launched, error) {
	got, err := l.takeOver(ctx, p)
	if err == nil && !got.child {
		got.release(p)
		return nil, fmt.Errorf("the reported process %d is not a child of this supervisor", got.identity.PID)
	}
	return got, err
}

func (l *launched) release(p *processes.Set) {
	if l.child {
		p.Forget(l.identity.PID)
	}
	unix.Close(l.pidfd)
}

// run marks the process as running. task.mu is held.
func (p *process) run(l *launched, stdin *os.File) {
	p.state, p.abort = running, nil
	p.identity, p.pidfd, p.child = l.identity, l.pidfd, l.child
	p.stdin, p.master = stdin, l.master
}

// stop marks the process as exited. task.mu is held.
func (p *process) stop(exit journal.Exit) {
	p.state, p.exit = stopped, exit
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
	p.closeStdin()
	close(p.done)
}
