package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// answerTimeout is how long a socket's owner may take to accept a connection.
const answerTimeout = 2 * time.Second

// listen listens on host:port, or on a unix socket as unix:///path.
func listen(ctx context.Context, address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return listenUnix(ctx, path)
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// listenUnix listens on a unix socket. It replaces the socket of a killed daemon, but not one that
// a process still listens on. The lock file keeps two daemons that start at the same time from
// replacing each other's socket.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), lock.Close())
	}
	l, err := (&net.ListenConfig{Control: passCredentials}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	own, err := ownSocket(l, path)
	if err != nil {
		return nil, errors.Join(err, l.Close(), lock.Close())
	}
	return &lockedListener{Listener: l, lock: lock, path: path, own: own}, nil
}

// ownSocket disables the removal of l's socket on close, and returns the socket's identity.
func ownSocket(l net.Listener, path string) (os.FileInfo, error) {
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return os.Lstat(path)
}

// passCredentials attaches this process's id to everything sent on the socket. Installers connect,
// set SO_PASSCRED, and send a SIGHUP to the received id. Bytes sent before they set it would carry
// id 0, which kill(2) takes for their own process group. Accepted sockets inherit the option.
func passCredentials(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
	return errors.Join(err, failed)
}

// lockedListener holds the lock file while it listens.
type lockedListener struct {
	net.Listener
	lock *os.File
	path string
	own  os.FileInfo
}

// Close removes the socket, unless another program has replaced it, as containerd does when it
// starts.
func (l *lockedListener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.own) {
		_ = os.Remove(l.path)
	}
	return errors.Join(l.Listener.Close(), ignoreClosed(l.lock.Close()))
}

// ignoreClosed drops the error of a second close: a server also closes its listener.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// lockFile locks a file until this process ends. The file stays: after a removal two processes
// could hold locks on two files of the same name.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = flock(f)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%s is locked: another berth runs here; stop it first, or choose another socket", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockPatience is how long a lock or socket may be held by a process other than a daemon: a child
// of a killed daemon, between fork and exec.
const lockPatience = 2 * time.Second

func flock(f *os.File) error {
	for end := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// removeStale removes a socket once it is proven that no process listens on it.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("the path exists and is not a socket; remove it, or choose another path")
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for end := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return os.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("check whether another process is serving this socket: %w", err)
		}
		pid := listener(conn)
		if err := conn.Close(); err != nil {
			return err
		}
		if gone := errors.Is(unix.Kill(pid, 0), unix.ESRCH); pid <= 0 || !gone || time.Now().After(end) {
			return fmt.Errorf("another process is serving this socket%s; stop it first, or choose another path", named(pid))
		}
	}
}

// listener returns the id of the process that called listen(2) at the other end; 0 if the kernel
// does not report it.
func listener(conn net.Conn) int {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var who *unix.Ucred
	if err := raw.Control(func(fd uintptr) { who, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || who == nil {
		return 0
	}
	return int(who.Pid)
}

// named describes a process as " (containerd, process 7)"; "" for pid 0.
func named(pid int) string {
	if pid <= 0 {
		return ""
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return fmt.Sprintf(" (process %d)", pid)
	}
	return fmt.Sprintf(" (%s, process %d)", strings.TrimSpace(string(name)), pid)
}

// ownerOnly is the mode of a socket for its owner only.
const ownerOnly fs.FileMode = 0o600

// listenFor listens on a unix socket with the mode and group until the teardown.
func (d *Daemon) listenFor(ctx context.Context, name, path string, mode fs.FileMode, group string) (net.Listener, error) {
	l, err := listenUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	d.teardown.add(name, func(context.Context) error { return ignoreClosed(l.Close()) })
	return l, permit(path, mode, group)
}

// permit sets the users that may connect to the socket.
func permit(path string, mode fs.FileMode, group string) error {
	if group != "" {
		gid, err := groupID(group)
		if err != nil {
			return fmt.Errorf("server.socket_group: %w", err)
		}
		if err := os.Chown(path, -1, gid); err != nil {
			return fmt.Errorf("server.socket_group: %w", err)
		}
	}
	return os.Chmod(path, mode)
}

func groupID(group string) (int, error) {
	if gid, err := strconv.Atoi(group); err == nil {
		return gid, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}
