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

// answerTimeout is how long a socket's owner may take to accept.
const answerTimeout = 2 * time.Second

// listen listens on host:port, or on a unix socket as unix:///path.
func listen(ctx context.Context, address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return listenUnix(ctx, path)
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// listenUnix listens on a unix socket. A socket that a killed daemon left behind
// is replaced, one on which somebody answers is not. The lock beside it keeps
// two daemons that start at once from each replacing the other's.
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

// ownSocket has l leave its socket to who closes it, and says which it is.
func ownSocket(l net.Listener, path string) (os.FileInfo, error) {
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return os.Lstat(path)
}

// passCredentials puts this process's id on all that it sends. Installers
// connect, ask the kernel for the id on what they receive, and send a SIGHUP
// there; where the first bytes were faster than their question they would find
// 0, which is their own process group. Accepted sockets inherit it.
func passCredentials(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
	return errors.Join(err, failed)
}

// lockedListener holds the lock for as long as it listens.
type lockedListener struct {
	net.Listener
	lock *os.File
	path string
	own  os.FileInfo
}

// Close removes the socket, unless another program has put its own in the place, as
// containerd does when it starts.
func (l *lockedListener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.own) {
		_ = os.Remove(l.path)
	}
	return errors.Join(l.Listener.Close(), ignoreClosed(l.lock.Close()))
}

// ignoreClosed makes closing twice no error: a server closes its listener, too.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// lockFile takes a lock that ends with this process. The file stays: removing
// it would let two processes hold locks on two files of one name.
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

// lockPatience is how long a lock or a socket may be held by what is not a daemon any
// more: a child of a killed one that had not come to its exec yet.
const lockPatience = 2 * time.Second

func flock(f *os.File) error {
	for end := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// removeStale removes a socket if it is proven that nobody listens on it.
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

// listener is the process that began to listen at the other end; 0 where the kernel does
// not say.
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

// named is a process in words, " (containerd, process 7)"; empty for none.
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

// ownerOnly keeps all but the owner from a socket.
const ownerOnly fs.FileMode = 0o600

// listenFor takes a unix socket for those that mode and group permit, until the teardown.
func (d *Daemon) listenFor(ctx context.Context, name, path string, mode fs.FileMode, group string) (net.Listener, error) {
	l, err := listenUnix(ctx, path)
	if err != nil {
		return nil, err
	}
	d.teardown.add(name, func(context.Context) error { return ignoreClosed(l.Close()) })
	return l, permit(path, mode, group)
}

// permit sets which users may talk to the socket.
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
