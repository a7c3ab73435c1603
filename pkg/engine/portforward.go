package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

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
	if errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("connection refused: nobody listens on port %d of the pod's 127.0.0.1 or ::1: %w", port, errdefs.ErrUnavailable)
	}
	if err != nil {
		return fmt.Errorf("connect to port %d of sandbox %s: %w", port, s.ID(), err)
	}
	return splice(ctx, conn, stream)
}

// podGrace is how long a pod may be silent once its client has said all. Linux's
// connection tracking forgets a connection then that was closed in one direction.
const podGrace = 2 * time.Minute

// podConn is a connection to a pod. Once the client has said all, it ends when the
// pod falls silent: nobody may be left who would close the rest.
type podConn struct {
	net.Conn
	grace    time.Duration
	endWrite func() error
	said     atomic.Bool // the client has said all
}

func (c *podConn) Read(b []byte) (int, error) {
	if c.said.Load() {
		c.limit()
	}
	n, err := c.Conn.Read(b)
	if c.said.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
		err = io.EOF
	}
	return n, err
}

func (c *podConn) limit() { _ = c.SetReadDeadline(time.Now().Add(c.grace)) }

func (c *podConn) CloseWrite() error {
	c.said.Store(true)
	c.limit()
	return c.endWrite()
}

// splice copies both ways until both have ended, each by itself, or the client
// has hung up.
func splice(ctx context.Context, pod halfCloser, client io.ReadWriteCloser) error {
	defer func() { _ = pod.Close() }()
	toPod := make(chan struct{})
	go func() {
		defer close(toPod)
		_, _ = io.Copy(pod, client)
		_ = pod.CloseWrite()
	}()
	stop := context.AfterFunc(ctx, func() {
		// What the client sent before it left is still on its way.
		awaitFor(toPod, lastWords)
		_ = pod.Close()
	})
	defer stop()
	_, err := io.Copy(client, pod)
	_ = client.Close() // the pod has nothing more to say
	select {
	case <-toPod:
		return err
	case <-ctx.Done():
		return nil // there is nobody to tell
	}
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
func dialPod(ctx context.Context, netns string, port int) (*podConn, error) {
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
	return &podConn{Conn: conn, grace: podGrace, endWrite: conn.(*net.TCPConn).CloseWrite}, nil
}
