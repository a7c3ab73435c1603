package daemon_test

import (
	"context"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func (b *bed) makeSocketDir(t *testing.T) {
	t.Helper()
	test.Must(t, os.MkdirAll(filepath.Dir(b.config.Server.Socket), 0o700))
}

// listening listens on a socket before a daemon starts.
func listening(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l := test.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	t.Cleanup(func() { l.Close() })
	return l
}

func TestAStaleSocketIsReplaced(t *testing.T) {
	b := newBed(t)
	b.makeSocketDir(t)
	for _, path := range []string{b.config.Server.Socket, strings.TrimPrefix(b.config.Metrics.Address, "unix://")} {
		stale := listening(t, path)
		stale.SetUnlinkOnClose(false) // as after kill -9
		stale.Close()
		if !exists(t, path) {
			t.Fatal("no stale socket")
		}
	}
	b.started(t)
	test.Check(t, b.version(t))
}

// victimSocket is the environment variable with the path of victim's socket.
const victimSocket = "BERTH_TEST_VICTIM_SOCKET"

func victim(path string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		panic(err)
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		panic(err)
	}
	child := exec.Command("sleep", "0.5")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		panic(err)
	}
}

// A child of a killed daemon may have the daemon's sockets open until its exec.
func TestASocketThatAChildHasIsReplaced(t *testing.T) {
	b := newBed(t)
	b.makeSocketDir(t)
	killed := exec.Command("/proc/self/exe")
	killed.Env = append(os.Environ(), victimSocket+"="+b.config.Server.Socket)
	if out, err := killed.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b.started(t)
	test.Check(t, b.version(t))
}

func TestALiveSocketIsRefused(t *testing.T) {
	b := newBed(t)
	b.makeSocketDir(t)
	other := listening(t, b.config.Server.Socket)
	err := b.daemon(t).Start(t.Context())
	test.Says(t, err, b.config.Server.Socket, "another process is serving this socket")
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", b.config.Server.Socket)
	test.Mustf(t, err, "connect to the other process")
	conn.Close()
	other.Close()
}

func TestTwoDaemonsDoNotShareASocket(t *testing.T) {
	b := newBed(t)
	first := b.started(t)
	test.Says(t, b.daemon(t).Start(t.Context()), "another berth runs here")
	test.Checkf(t, b.version(t), "call the first daemon")
	test.Check(t, first.Stop(context.Background()))
	b.started(t)
}

func TestAFileIsNeverReplacedByASocket(t *testing.T) {
	b := newBed(t)
	b.makeSocketDir(t)
	test.Must(t, os.WriteFile(b.config.Server.Socket, []byte("precious"), 0o600))
	test.Says(t, b.daemon(t).Start(t.Context()), "not a socket")
	test.Equal(t, "the file", test.File(t, b.config.Server.Socket), "precious")
}

func TestWhoMayTalkToTheSocket(t *testing.T) {
	b := newBed(t)
	b.config.Server.SocketMode, b.config.Server.SocketGroup = 0o640, "12345"
	b.started(t)
	info := test.Value(os.Stat(b.config.Server.Socket))(t)
	if info.Mode().Perm() != 0o640 || groupOf(t, info) != 12345 {
		t.Errorf("mode %s, group %d", info.Mode(), groupOf(t, info))
	}
}

func groupOf(t *testing.T, info fs.FileInfo) uint32 {
	t.Helper()
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("%T is not a Stat_t", info.Sys())
	}
	return stat.Gid
}

// TestItsBytesSayWhichProcessItIs: the bytes of the daemon carry its process ID, also
// if a client requests credentials after it has connected, as an installer does for its SIGHUP.
func TestItsBytesSayWhichProcessItIs(t *testing.T) {
	b := newBed(t)
	b.started(t)
	conn := test.Value(net.DialUnix("unix", nil, &net.UnixAddr{Name: b.config.Server.Socket, Net: "unix"}))(t)
	t.Cleanup(func() { _ = conn.Close() })
	raw := test.Value(conn.SyscallConn())(t)
	var asked error
	err := raw.Read(func(fd uintptr) bool {
		if n, _, _ := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT); n < 1 {
			return false // called again when there are bytes
		}
		asked = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_PASSCRED, 1)
		return true
	})
	if err != nil || asked != nil {
		t.Fatal(err, asked)
	}
	control := make([]byte, 1024)
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), control)
	test.Must(t, err)
	messages, err := syscall.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) == 0 {
		t.Fatalf("no credentials: %v", err)
	}
	if who, err := syscall.ParseUnixCredentials(&messages[0]); err != nil || int(who.Pid) != os.Getpid() {
		t.Errorf("the bytes are from %+v, want process %d: %v", who, os.Getpid(), err)
	}
}
