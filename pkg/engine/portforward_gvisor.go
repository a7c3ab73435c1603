package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// dialGVisor has gVisor connect inside its own network stack, which nobody else
// reaches the loopback of. It carries the connection over a socket that runsc
// opens and hands to it.
func (b sessions) dialGVisor(ctx context.Context, s *sandbox, port int) (halfCloser, error) {
	dir, err := os.Open(b.sandboxDir(s.ID()))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// The directory's own path may be longer than that of a socket can be.
	path := filepath.Join(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), dir.Fd()), "forward-"+newExecID())
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for gVisor: %w", err)
	}
	defer listener.Close() // removes it as well
	d := b.runtimes.of(s.Spec())
	args := append([]string{"--root", b.runtimeRoot(d)}, globalFlags(d)...)
	args = append(args, "port-forward", "--stream", path, s.ID(), strconv.Itoa(port))
	if err := runBriefly(ctx, d.Path, args...); err != nil {
		return nil, err
	}
	// runsc has connected before it ended.
	if err := listener.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	conn, err := listener.AcceptUnix()
	if err != nil {
		return nil, err
	}
	// It closes all of a connection when one direction ends, so what the pod still
	// has to say would be lost with the end of what its client says: that end is
	// kept from it.
	return &podConn{Conn: conn, grace: gvisorGrace, endWrite: func() error { return nil }}, nil
}

// gvisorGrace is podGrace for a pod that does not learn that its client has said
// all, and may be waiting for that.
const gvisorGrace = 10 * time.Second

// runBriefly runs a command that should take no time. What it wrote to stderr is
// the error's text.
func runBriefly(ctx context.Context, path string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if err == nil {
		return nil
	}
	const most = 512
	text := strings.TrimSpace(problems.String())
	return fmt.Errorf("%s: %w: %s", filepath.Base(path), errors.Join(ctx.Err(), err), text[max(0, len(text)-most):])
}
