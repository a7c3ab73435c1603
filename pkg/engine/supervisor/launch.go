package supervisor

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// launch is a call of the runtime that starts a process: the first one of a
// container, or an exec. What is opened for the process belongs to the launch until
// it is taken over.
type launch struct {
	call    *runtimecall.Call
	pidFile string
	files   []string             // removed when the launch is over
	stdin   *os.File             // our end
	stdio   *stdio.Ends          // the process's ends, without a terminal
	console *stdio.ConsoleSocket // with one
	drop    func()               // closes what the kind of process has beside stdin
	taken   bool                 // stdin, and what drop closes, have an owner
}

// openIO opens what a process reads and writes, and has the call pass it on.
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

// terminal returns the terminal that the runtime made; nil for a process without.
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

// discard closes what was not taken over.
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

// launched is a process that the runtime has started.
type launched struct {
	identity processes.Process
	pidfd    int
	child    bool // we are its parent
	master   *os.File
}

// takeOver finds the process that the runtime names. adopt makes it a known child.
func (l *launch) takeOver(ctx context.Context, adopt func(ctx context.Context, pid, pidfd int) error) (*launched, error) {
	pid, err := readPIDFile(l.pidFile)
	if err != nil {
		return nil, fmt.Errorf("its PID cannot be read: %w", err)
	}
	pidfd, identity, err := processes.Identify(pid)
	if err != nil {
		return nil, err
	}
	return &launched{identity: identity, pidfd: pidfd, child: adopt(ctx, pid, pidfd) == nil}, nil
}

// notChild is said of a process that is not ours to watch, much less to kill.
func (l *launched) notChild() error {
	return fmt.Errorf("the process %d that it reported is not its child", l.identity.PID)
}

// letGo gives up a process that was taken over.
func (l *launched) letGo(p *processes.Set) {
	if l.child {
		p.Forget(l.identity.PID)
	}
	unix.Close(l.pidfd)
}

// run makes it a process that runs. task.mu is held.
func (p *process) run(l *launched, stdin *os.File) {
	p.state, p.abort = running, nil
	p.identity, p.pidfd, p.child = l.identity, l.pidfd, l.child
	p.stdin, p.master = stdin, l.master
}

// stop makes it a process that has ended. task.mu is held.
func (p *process) stop(exit journal.Exit) {
	p.state, p.exit = stopped, exit
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
	p.closeStdin()
	close(p.done)
}
