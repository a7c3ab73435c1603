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

// answerName is the file in the bundle that a start action answers into. It is
// the action's stdout, so that the answer is on disk the moment it is given, also
// if the daemon is killed while the action runs.
const answerName = "shim-start"

// answerSize is room for an answer, taken before the start: an action that
// cannot write its answer fails when its shim runs already.
const answerSize = 4096

// answerPatience is how long to wait for a start action that outlived its daemon.
const answerPatience = 10 * time.Second

// newAnswer makes the file, locked. The action shares the lock, so it is held
// until both have closed it.
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

// Started reads what the start action of a bundle answered. It waits for one
// that still runs. Without an answer that leads to a shim it is ErrGone.
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

// awaitUnlock gives up after a while: a shim may keep its action's stdout.
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

// printed is what an action that failed wrote in place of an answer.
func printed(f *os.File) string {
	out := make([]byte, answerSize)
	n, _ := f.ReadAt(out, 0)
	return tail(string(out[:n]))
}

// ReadLog reads the log of a shim that runs, as long as its process is there: without a
// reader the shim fails to write, or waits. A connection to it may break before.
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
	for !m.leftWithoutTrace(ep) {
		time.Sleep(traceInterval)
	}
}

// traceInterval is how often a shim is looked for that does not say its process.
const traceInterval = 10 * time.Second

// leftWithoutTrace tells whether a shim has ended that may not have said its process.
func (m *ForeignShims) leftWithoutTrace(ep Endpoint) bool {
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
	return nobodyListens(err)
}

// awaitEnd returns true when the shim's process has ended, and false at once if that
// cannot be waited for.
func (ep *Endpoint) awaitEnd() bool {
	fd, err := unix.PidfdOpen(ep.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return ep.ended()
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd") // without blocking: no thread waits
	defer pidfd.Close()
	// Read after the open: what the pidfd refers to cannot change any more.
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
