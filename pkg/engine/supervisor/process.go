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

	"github.com/berth-cri/berth/pkg/engine/procfs"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// processState is how far a process has come. It only grows.
type processState int

const (
	created processState = iota
	starting
	running
	stopped
)

// unknownStatus stands for an exit code that is lost.
const unknownStatus = 255

// process is a process of a container: its first, or one of an exec.
type process struct {
	execID   string // empty for the first one
	terminal bool
	paths    stdio.Paths
	spec     []byte // an exec's OCI process
	serial   uint64 // names an exec's files

	// All below is guarded by task.mu; done is closed once, with exit set.
	state    processState
	identity Process
	pidfd    int  // -1 unless it is running
	child    bool // we are its parent
	inner    int  // an exec's pid within a kernel of its own
	session  int  // that the runtime made for an exec, 0 if none
	stdin    *os.File
	master   *os.File
	abort    context.CancelFunc // while it is starting
	exit     Exit
	done     chan struct{}
}

func newProcess(execID string, terminal bool, paths stdio.Paths) *process {
	return &process{execID: execID, terminal: terminal, paths: paths, pidfd: -1, done: make(chan struct{})}
}

// signal sends a signal to a running process of this kernel.
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

// closeStdin ends our part of holding the process's stdin open.
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
		return 0, fmt.Errorf("%q is not the PID of a container", shorten(string(b)))
	}
	return pid, nil
}

// identify returns a pidfd of a process that a runtime has just named, and
// when it was started.
func identify(pid int) (int, Process, error) {
	fd, err := openPidfd(Process{PID: pid})
	if err != nil {
		return -1, Process{}, fmt.Errorf("process %d does not exist: %w", pid, err)
	}
	stat, err := procfs.StatOf(pid)
	if err != nil {
		unix.Close(fd)
		return -1, Process{}, err
	}
	return fd, Process{PID: pid, StartTime: stat.Started}, nil
}

// isFirstOfNamespace says whether a process is pid 1 of a pid namespace of its
// own, with which all others of the container end.
func isFirstOfNamespace(pid int) bool {
	b, err := os.ReadFile(procfs.Path(pid, "status"))
	if err != nil {
		return false
	}
	for line := range bytes.Lines(b) {
		if ids, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			fields := bytes.Fields(ids)
			return len(fields) > 1 && string(fields[len(fields)-1]) == "1"
		}
	}
	return false
}

const (
	// exitTries bounds how often a foreign process's exit is asked for: between
	// its end and its reaping by whoever is its parent nobody may know it.
	exitTries = 20
	exitPause = 5 * time.Millisecond
)

func (p *processes) collect(identity Process, pidfd int, child bool) (status uint32, known bool) {
	if child {
		if status, err := p.reap(identity.PID, pidfd); err == nil {
			return status, true
		}
	}
	for range exitTries {
		status, err := foreignExit(pidfd, identity)
		if err == nil {
			return status, true
		}
		if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
			break // an older kernel, which will not know later either
		}
		time.Sleep(exitPause)
	}
	return unknownStatus, false
}
