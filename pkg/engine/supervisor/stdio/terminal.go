package stdio

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ConsoleSocket receives the master of a terminal from the runtime that created it.
type ConsoleSocket struct {
	Path     string
	dir      string
	listener *net.UnixListener
}

// NewConsoleSocket listens in a directory of its own with a short name, because the path of a Unix
// socket is limited to 107 bytes.
func NewConsoleSocket() (*ConsoleSocket, error) {
	dir, err := os.MkdirTemp("", "berth-tty-")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("listen for the terminal: %w", err)
	}
	return &ConsoleSocket{Path: path, dir: dir, listener: l}, nil
}

// Close removes the socket.
func (s *ConsoleSocket) Close() {
	s.listener.Close()
	os.RemoveAll(s.dir)
}

// Receive returns the master, which the runtime sent before it exited.
func (s *ConsoleSocket) Receive() (*os.File, error) {
	deadline := time.Now().Add(5 * time.Second)
	_ = s.listener.SetDeadline(deadline)
	conn, err := s.listener.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("the runtime sent no terminal: %w", err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(deadline)
	// Make room for the terminal's name, which is not used, and for one descriptor.
	name, control := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(name, control)
	if err != nil {
		return nil, fmt.Errorf("receive the terminal: %w", err)
	}
	fd, err := passedFD(control[:n])
	if err != nil {
		return nil, fmt.Errorf("receive the terminal: %w", err)
	}
	return TerminalFile(fd)
}

func passedFD(control []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return -1, err
	}
	for _, m := range messages {
		if fds, err := unix.ParseUnixRights(&m); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, errors.New("the message had no file descriptor")
}

// TerminalFile returns a terminal's master as a file of Go's poller.
func TerminalFile(fd int) (*os.File, error) {
	unix.CloseOnExec(fd)
	if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("the received file is not a terminal: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "terminal"), nil
}

// Resize sets the size of a terminal.
func Resize(master *os.File, width, height uint32) error {
	if width > 0xffff || height > 0xffff {
		return fmt.Errorf("terminal size of %d columns and %d rows is too large: %w", width, height, errdefs.ErrInvalidArgument)
	}
	conn, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var ioctl error
	err = conn.Control(func(fd uintptr) {
		ioctl = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(width), Row: uint16(height)})
	})
	return errors.Join(err, ioctl)
}
