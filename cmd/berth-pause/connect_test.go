package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// TestMain runs berth-pause in the test binary if the environment requests it.
func TestMain(m *testing.M) {
	if os.Getenv("BERTH_PAUSE_TEST_MAIN") == "1" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// patience is longer than any step of these tests.
const patience = time.Minute

// carried is a running "/connect" with the test's ends of its socket and of its stderr.
type carried struct {
	cmd      *exec.Cmd
	conn     *net.UnixConn
	problems *os.File
}

// start starts the program with a non-blocking socket, as gVisor does.
func start(t *testing.T, port int) carried {
	t.Helper()
	fds := test.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))(t)
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	conn := test.Value(net.FileConn(ours))(t)
	problems, stderr, err := os.Pipe()
	test.Must(t, err)
	defer stderr.Close()
	c := carried{cmd: exec.Command("/proc/self/exe"), conn: conn.(*net.UnixConn), problems: problems}
	c.cmd.Args = []string{"/connect", strconv.Itoa(port)}
	c.cmd.Env = append(os.Environ(), "BERTH_PAUSE_TEST_MAIN=1")
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = theirs, theirs, stderr
	test.Must(t, c.cmd.Start())
	t.Cleanup(func() { conn.Close(); problems.Close(); _ = c.cmd.Process.Kill() })
	test.Must(t, conn.SetDeadline(time.Now().Add(patience)))
	return c
}

// answered checks the status byte that the program sends about its connection.
func (c carried) answered(t *testing.T, want unix.Errno) {
	t.Helper()
	var b [1]byte
	if _, err := io.ReadFull(c.conn, b[:]); err != nil || unix.Errno(b[0]) != want {
		t.Fatalf("the status is %d (%v), %v; want %d", b[0], unix.Errno(b[0]), err, want)
	}
}

// listen accepts one connection and calls serve with it.
func listen(t *testing.T, address string, serve func(*net.TCPConn)) (port int) {
	t.Helper()
	l := test.Value(net.Listen("tcp", address))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			serve(c.(*net.TCPConn))
			c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestConnectCarriesBothWaysToTheirEnds(t *testing.T) {
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			port := listen(t, address, func(c *net.TCPConn) {
				all, _ := io.ReadAll(c) // until the client closes its side
				_, _ = c.Write(all)
			})
			c := start(t, port)
			c.answered(t, 0)
			test.Must(t, test.Err(c.conn.Write(text)))
			test.Must(t, c.conn.CloseWrite())
			got, err := io.ReadAll(c.conn)
			if err != nil || !bytes.Equal(got, text) {
				t.Fatalf("%d of %d bytes came back, %v", len(got), len(text), err)
			}
			test.Check(t, c.cmd.Wait())
		})
	}
}

// The end of the server's data must reach the client while the client can still send.
func TestConnectPassesOnTheServersEnd(t *testing.T) {
	heard := make(chan []byte, 1)
	port := listen(t, "[::1]:0", func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "bye")
		_ = c.CloseWrite()
		all, _ := io.ReadAll(c)
		heard <- all
	})
	c := start(t, port)
	c.answered(t, 0)
	test.Equal(t, "data from the server", string(test.Value(io.ReadAll(c.conn))(t)), "bye")
	test.Must(t, test.Err(io.WriteString(c.conn, "wait")))
	test.Must(t, c.conn.CloseWrite())
	select {
	case got := <-heard:
		if string(got) != "wait" {
			t.Errorf("the server got %q", got)
		}
	case <-time.After(patience):
		t.Error("the end of the client's data did not reach the server")
	}
}

func TestConnectIsRefused(t *testing.T) {
	l := test.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	c := start(t, port)
	c.answered(t, unix.ECONNREFUSED)
	test.Fails(t, c.cmd.Wait(), "a refused connection succeeded")
}

// A connection without data must end when its client is gone.
func TestConnectEndsWithItsReader(t *testing.T) {
	gone := make(chan struct{})
	port := listen(t, "127.0.0.1:0", func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		close(gone)
	})
	c := start(t, port)
	c.answered(t, 0)
	c.problems.Close()
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the connection still exists although its client is gone")
	}
	test.Fails(t, c.cmd.Wait(), "a connection without a client succeeded")
}
