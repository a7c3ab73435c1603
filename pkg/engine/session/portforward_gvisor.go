package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// dialGVisor makes berth-pause connect, by an exec in the sandbox's first container, because only
// the sandbox reaches the loopback of gVisor's own network stack. `runsc port-forward` does not
// suffice: it dials 127.0.0.1 only, closes the whole connection when one direction ends, and gives
// up when a client reads slowly.
func (b sessions) dialGVisor(ctx context.Context, s *pod.Sandbox, port int) (*podConn, error) {
	d := b.binaries.Runtimes.Of(s.Spec())
	args := append([]string{"--root", b.execs.pods.RuntimeRoot(d)}, task.GlobalFlags(d)...)
	args = append(args, "exec", s.ID(), "/"+binaries.ConnectName, strconv.Itoa(port))
	command := exec.Command(d.Path, args...)
	command.Env = shim.Environment()
	c, err := startConnect(command)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now()) })
	defer stop()
	if err := c.connected(); err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	return &podConn{halfCloser: c, grace: podGrace}, nil
}

// innerConn is a connection carried by a process inside a sandbox.
type innerConn struct {
	*net.UnixConn
	cmd *exec.Cmd
	// problems reads the stderr of the runtime and the process. The process exits when this end is
	// closed, by Close or by the daemon's exit.
	problems *os.File
}

func startConnect(cmd *exec.Cmd) (_ *innerConn, err error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	problems, stderr, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	defer stderr.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs, theirs, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, ours.Close(), problems.Close())
	}
	return &innerConn{UnixConn: ours, cmd: cmd, problems: problems}, nil
}

// socketPair returns both ends of a connection: ours and a process's.
func socketPair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "theirs")
	mine := os.NewFile(uintptr(fds[0]), "ours")
	defer mine.Close()
	conn, err := net.FileConn(mine) // duplicates the descriptor
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}

// connected waits until the process reports its connection. On failure it kills the process and
// closes everything.
func (c *innerConn) connected() error {
	err := c.SetReadDeadline(time.Now().Add(dialTimeout))
	var answer [1]byte
	if err == nil {
		_, err = io.ReadFull(c.UnixConn, answer[:])
	}
	errno := unix.Errno(answer[0])
	switch {
	case err == nil && errno == 0:
		go c.attend()
		return c.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("berth-pause did not connect in time: %w", err)
	}
	_ = c.UnixConn.Close()
	_ = unix.Kill(-c.cmd.Process.Pid, unix.SIGKILL)
	text := c.output()
	_ = c.problems.Close()
	ended := c.cmd.Wait()
	if errno != 0 { // the process reported why
		return errno
	}
	if ended != nil && errors.Is(err, io.EOF) {
		err = ended
	}
	if text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return fmt.Errorf("%s exec: %w", filepath.Base(c.cmd.Path), err)
}

// output returns the end of stderr so far.
func (c *innerConn) output() string {
	const most = 512
	_ = c.problems.SetReadDeadline(time.Now().Add(time.Second))
	var b bytes.Buffer
	_, _ = io.Copy(&b, io.LimitReader(c.problems, 64<<10))
	text := strings.TrimSpace(b.String())
	return text[max(0, len(text)-most):]
}

func (c *innerConn) attend() {
	_, _ = io.Copy(io.Discard, c.problems)
	_ = c.cmd.Wait()
}

func (c *innerConn) Close() error {
	return errors.Join(c.UnixConn.Close(), c.problems.Close())
}
