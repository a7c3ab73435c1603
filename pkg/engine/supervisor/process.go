package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// processState is the state of a process. It only advances.
type processState int

const (
	created processState = iota
	starting
	running
	stopped
)

// process is the first process of a container, or the process of an exec.
type process struct {
	execID   string // empty for the first process
	terminal bool
	paths    stdio.Paths
	spec     []byte // OCI process of an exec
	score    *int   // its oom_score_adj, or nil
	serial   uint64 // number in the names of an exec's files

	// state and the fields below are guarded by task.mu. done is closed once, with exit set.
	state    processState
	identity processes.Process
	pidfd    int  // -1 unless it is running
	child    bool // the supervisor is its parent
	inside   signaller
	session  int // the session that the runtime created for an exec, or 0
	stdin    *os.File
	master   *os.File
	abort    context.CancelFunc // while it is starting
	exit     journal.Exit
	done     chan struct{}
}

// signaller sends a signal to an exec in a separate kernel; nil for a process of the host.
type signaller func(ctx context.Context, sig unix.Signal) error

// innerProcess is an exec in a separate kernel; zero for a process of the host.
type innerProcess struct {
	pid    int
	signal signaller
}

func newProcess(execID string, terminal bool, paths stdio.Paths) *process {
	return &process{execID: execID, terminal: terminal, paths: paths, pidfd: -1, done: make(chan struct{})}
}

func (p *process) signal(sig unix.Signal) error {
	if p.pidfd < 0 {
		return errFinished
	}
	switch err := unix.PidfdSendSignal(p.pidfd, sig, nil, 0); {
	case errors.Is(err, unix.ESRCH):
		return errFinished
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("signal %d: %w", sig, errdefs.ErrInvalidArgument)
	default:
		return err
	}
}

var errFinished = fmt.Errorf("process already finished: %w", errdefs.ErrNotFound)

// closeStdin closes the supervisor's write end of the process's stdin.
func (p *process) closeStdin() {
	if p.stdin != nil {
		p.stdin.Close()
		p.stdin = nil
	}
}

func readPIDFile(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("%q is not the PID of a container", runtimecall.Shorten(string(b)))
	}
	return pid, nil
}

// exitOf returns the exit of a process that has exited.
func exitOf(p *processes.Set, identity processes.Process, pidfd int, child bool) journal.Exit {
	exit := journal.Exit{PID: identity.PID, ExitedAt: time.Now().UnixNano()}
	status, known := p.Collect(identity, pidfd, child)
	exit.Status, exit.Unknown = status, !known
	return exit
}
