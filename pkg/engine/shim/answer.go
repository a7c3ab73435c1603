package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// answerName is the file in the bundle that receives a start action's stdout. The answer is on disk
// as soon as it is written, even if the daemon is killed while the action runs.
const answerName = "shim-start"

// answerSize is allocated before the start: on a full disk, an action would otherwise fail only
// after it has started its shim.
const answerSize = 4096

// answerPatience is how long to wait for a start action that outlived its daemon.
const answerPatience = 10 * time.Second

// newAnswer creates the file and locks it. The action inherits the lock, which is held until the
// daemon and the action have closed the file.
func newAnswer(bundle string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(bundle, answerName), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("shim response: %w", err)
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, answerSize)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = nil
	}
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shim response: %w", err), f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

// Started reads what the start action of a bundle answered, and waits for an action that still
// runs. It returns ErrGone if there is no valid answer.
func (m *ForeignShims) Started(ctx context.Context, bundle string) (Endpoint, error) {
	f, err := os.Open(filepath.Join(bundle, answerName))
	if errors.Is(err, fs.ErrNotExist) {
		return Endpoint{}, fmt.Errorf("no shim was started: %w", ErrGone)
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("shim response: %w", err)
	}
	defer f.Close()
	awaitUnlock(ctx, f)
	ep, err := readAnswer(f)
	if err != nil {
		return Endpoint{}, fmt.Errorf("%w: %w", err, ErrGone)
	}
	return ep, nil
}

// awaitUnlock waits for the action to close its stdout, with a limit: a shim may keep that open.
func awaitUnlock(ctx context.Context, f *os.File) {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	for errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func readAnswer(f *os.File) (Endpoint, error) {
	out := make([]byte, answerSize)
	n, err := f.ReadAt(out, 0)
	if n == 0 {
		return Endpoint{}, fmt.Errorf("the shim's start returned no response: %w", errdefs.ErrUnavailable)
	}
	if n == len(out) && err == nil {
		return Endpoint{}, fmt.Errorf("the shim's response is longer than %d bytes: %w", answerSize, errdefs.ErrInvalidArgument)
	}
	return parseEndpoint(out[:n])
}

// printed returns what a failed action wrote instead of an answer.
func printed(f *os.File) string {
	out := make([]byte, answerSize)
	n, _ := f.ReadAt(out, 0)
	return tail(string(out[:n]))
}

// ReadLog reads a running shim's log until its process exits: without a reader the shim's writes
// fail or block. The end of a connection to the shim does not end the reading.
func (m *ForeignShims) ReadLog(s Start, ep Endpoint) error {
	closeLog, err := m.drainLog(s)
	if err == nil {
		go m.closeAfter(ep, closeLog)
	}
	return err
}

func (m *ForeignShims) closeAfter(ep Endpoint, closeLog func()) {
	defer closeLog()
	if ep.PID > 0 && ep.awaitEnd() {
		return
	}
	for !m.shimExited(ep) {
		time.Sleep(traceInterval)
	}
}

// traceInterval is how often closeAfter checks a shim that did not report its process id.
const traceInterval = 10 * time.Second

// shimExited reports whether a shim has exited, even if its process id is unknown, or m is closed.
func (m *ForeignShims) shimExited(ep Endpoint) bool {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed || ep.ended() {
		return true
	}
	conn, err := dialForeign(ep.Address)
	if err == nil {
		_ = conn.Close()
	}
	return noListener(err)
}

// awaitEnd returns true once the shim's process has exited, and false at once if it cannot be
// waited for.
func (ep *Endpoint) awaitEnd() bool {
	fd, err := unix.PidfdOpen(ep.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return ep.ended()
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd") // without blocking: no thread waits
	defer pidfd.Close()
	// Check after the open: if the process has not exited, the pidfd refers to it.
	if ep.ended() {
		return true
	}
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return false
	}
	err = conn.Read(func(fd uintptr) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor
		return n > 0
	})
	return err == nil
}
