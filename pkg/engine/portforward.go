package engine

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

	"github.com/berth-cri/berth/pkg/engine/pin"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// dialTimeout bounds the way to a port of a pod.
const dialTimeout = 10 * time.Second

// PortForward copies between the client's stream and a port inside the pod's
// network, over IPv4, or IPv6 where nobody listens on that.
func (b sessions) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	s, err := b.objects.sandbox(id)
	if err != nil {
		return err
	}
	conn, err := b.dial(ctx, s, int(port))
	if err != nil {
		return fmt.Errorf("port %d of sandbox %s: %w", port, s.ID(), err)
	}
	defer func() { _ = conn.Close() }()
	toPod := make(chan struct{})
	go func() {
		defer close(toPod)
		_, _ = io.Copy(conn, stream)
		_ = conn.CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	stream.Close() // ends the copy to a pod that has nothing more to say
	<-toPod
	return err
}

// halfCloser is a connection of which one way can be ended.
type halfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

func (b sessions) dial(ctx context.Context, s *sandbox, port int) (halfCloser, error) {
	spec := s.Spec()
	if spec.Plan.Runtime == probe.Runsc && spec.Definition.Type == handler.OCI && spec.Plan.Net {
		return b.dialGVisor(ctx, s, port)
	}
	return dialPod(ctx, s.Status().Namespaces.Net, port)
}

// dialPod connects from inside a network namespace; "" is the host's.
func dialPod(ctx context.Context, netns string, port int) (*net.TCPConn, error) {
	var conn net.Conn
	dial := func() (err error) {
		d := net.Dialer{Timeout: dialTimeout}
		for _, ip := range []string{"127.0.0.1", "::1"} {
			var derr error
			if conn, derr = d.DialContext(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(port))); derr == nil {
				return nil
			}
			err = errors.Join(err, derr)
		}
		return err
	}
	var err error
	if netns == "" {
		err = dial()
	} else {
		err = pin.Do(netns, dial)
	}
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

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
	d := s.Spec().Definition
	args := append([]string{"--root", b.runtimeRoot(d)}, globalFlags(d)...)
	args = append(args, "port-forward", "--stream", path, s.ID(), strconv.Itoa(port))
	if err := runBriefly(ctx, d.Path, args...); err != nil {
		return nil, err
	}
	// runsc has connected before it ended.
	if err := listener.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	return listener.AcceptUnix()
}

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
