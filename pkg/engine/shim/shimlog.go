package shim

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ReadLog reads the log of a shim that runs, as long as its process is there: without a
// reader the shim fails to write, or waits. A connection to it may break before.
func (m *ForeignShims) ReadLog(s Start, ep Endpoint) error {
	closeLog, err := m.drainLog(s)
	if err == nil {
		go m.closeAfter(ep, closeLog)
	}
	return err
}

// closeAfter closes the log of a shim when that has ended.
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
