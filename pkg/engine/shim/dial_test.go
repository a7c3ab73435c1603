package shim

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/thread"
)

func TestSocketOf(t *testing.T) {
	for _, c := range []struct {
		address  string
		file     bool
		path     string
		abstract bool
	}{
		{"unix:///run/berth/s/abc", true, "/run/berth/s/abc", false},
		{"unix:///run/berth/s/abc", false, "/run/berth/s/abc", false}, // its shim is gone
		{"/containerd-shim/abc.sock", false, "/containerd-shim/abc.sock", true},
		{"unix:///containerd-shim/abc.sock", false, "/containerd-shim/abc.sock", true},
		{"unix:///containerd-shim/abc.sock", true, "/containerd-shim/abc.sock", false},
		{"/run/shim.sock", true, "/run/shim.sock", false},
		{"/run/shim.sock", false, "/run/shim.sock", true},
		{"unix://@/containerd-shim/abc.sock", false, "/containerd-shim/abc.sock", true},
		{"@/abc", false, "/abc", true},
	} {
		path, abstract := socketOf(c.address, func(string) bool { return c.file })
		if path != c.path || abstract != c.abstract {
			t.Errorf("%s (file %v): %s, abstract %v", c.address, c.file, path, abstract)
		}
	}
}

func TestDialForeign(t *testing.T) {
	abstract := fmt.Sprintf("/containerd-shim/berth-test-%d.sock", os.Getpid())
	file := filepath.Join(t.TempDir(), "s")
	for address, socket := range map[string]string{abstract: "\x00" + abstract, "unix://" + file: file, file: file} {
		l := test.Value(net.Listen("unix", socket))(t)
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.WriteString(c, "x")
				_ = c.Close()
			}
		}()
		c, err := dialForeign(address)
		test.Mustf(t, err, "%s", address)
		if text, err := io.ReadAll(c); string(text) != "x" || err != nil {
			t.Errorf("%s: %q, %v", address, text, err)
		}
		_, _ = c.Close(), l.Close()
		if _, err := dialForeign(address); !noListener(err) {
			t.Errorf("%s without a listener: %v", address, err)
		}
	}
}

// Every user can listen on the name of an abstract socket. A socket of another user is not
// taken for the shim, and does not mean that the shim is gone either.
func TestDialForeignOfAnotherUser(t *testing.T) {
	const nobody = 65534
	address := fmt.Sprintf("@/containerd-shim/berth-test-%d-nobody.sock", os.Getpid())
	var fd int
	err := thread.Run(func() (err error) {
		// The call changes the user of this thread only. thread.Run ends the thread afterwards.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			return errno
		}
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: address}); err != nil {
			return err
		}
		return unix.Listen(fd, 1)
	})
	test.Must(t, err)
	defer unix.Close(fd)
	conn, err := dialForeign(address)
	if err == nil {
		_ = conn.Close()
	}
	if err == nil || noListener(err) || !strings.Contains(err.Error(), "the socket belongs to user 65534") {
		t.Errorf("dial: %v", err)
	}
}
