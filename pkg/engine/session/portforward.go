package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// dialTimeout bounds the connection to a port of a pod.
const dialTimeout = 10 * time.Second

// PortForward copies between the client's stream and a port inside the pod's network, over IPv4, or
// over IPv6 if nothing listens on IPv4; see waysTo.
func (b sessions) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	s, err := b.execs.pods.Index.Sandbox(id)
	if err != nil {
		return err
	}
	conn, err := b.dial(ctx, s, int(port))
	refused, is := errors.AsType[*refusedError](err)
	if is || errors.Is(err, unix.ECONNREFUSED) { // the latter is from gVisor
		return fmt.Errorf("connection refused: no process listens on port %d of the pod's %s: %w", port, refused.where(), errdefs.ErrUnavailable)
	}
	if err != nil {
		return fmt.Errorf("connect to port %d of sandbox %s: %w", port, s.ID(), err)
	}
	return splice(ctx, conn, stream)
}

// podGrace is how long a pod may send nothing after the client closed its direction. Linux's
// connection tracking also drops a half-closed connection after this time.
const podGrace = 2 * time.Minute

// podConn is a connection to a pod. Once the client has closed its direction, the connection ends
// when the pod sends nothing for a while: the pod may never close the other direction.
type podConn struct {
	halfCloser
	grace        time.Duration
	clientClosed atomic.Bool // the client has closed its direction
}

// halfCloser is a connection with two directions that close separately.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

func (c *podConn) Read(b []byte) (int, error) {
	if c.clientClosed.Load() {
		c.limit()
	}
	n, err := c.halfCloser.Read(b)
	if c.clientClosed.Load() && errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.ECONNRESET) {
		// A reset ends only this connection. As an error it would end the whole session: clients
		// close a session on the first error of a stream.
		err = io.EOF
	}
	return n, err
}

func (c *podConn) limit() { _ = c.SetReadDeadline(time.Now().Add(c.grace)) }

func (c *podConn) CloseWrite() error {
	c.clientClosed.Store(true)
	c.limit()
	return c.halfCloser.CloseWrite()
}

// splice copies until both directions have ended, each by itself, or the client has disconnected.
func splice(ctx context.Context, pod *podConn, client io.ReadWriteCloser) error {
	defer func() { _ = pod.Close() }()
	toPod := make(chan struct{})
	go func() {
		defer close(toPod)
		_, _ = io.Copy(pod, client)
		_ = pod.CloseWrite()
	}()
	stop := context.AfterFunc(ctx, func() {
		// The client's last input may still be on its way.
		awaitFor(toPod, lastInput)
		_ = pod.Close()
	})
	defer stop()
	_, err := io.Copy(client, pod)
	_ = client.Close() // the pod closed its direction
	select {
	case <-toPod:
		return err
	case <-ctx.Done():
		return nil // the client is gone
	}
}

func (b sessions) dial(ctx context.Context, s *pod.Sandbox, port int) (*podConn, error) {
	st, own := s.Status(), s.Spec().Plan.Net // a pod without its own network listens on the node's
	if own && s.NetworkInside {
		return b.dialGVisor(ctx, s, port)
	}
	var ips []string
	if st.Network != nil {
		ips = st.Network.IPs
	}
	return dialPod(ctx, waysTo(own && s.Machine, st.Namespaces.Net, ips), port)
}

// way is an address at which a pod may listen, and the network namespace to dial it from; "" is the
// node's.
type way struct{ netns, ip string }

// waysTo returns the ways to a port of a pod, in the order of attempts. A process in a virtual
// machine listens at the pod's addresses. They are dialled from the node, as the kubelet's probes
// do: the shim may have left them in the pod's network namespace, too, where a connection would not
// reach the machine. A shim of unknown kind may run no machine, so loopback in the namespace comes
// first. Pure.
func waysTo(machine bool, netns string, ips []string) []way {
	all := []way{{netns, "127.0.0.1"}, {netns, "::1"}}
	if !machine {
		return all
	}
	for _, ip := range ips {
		all = append(all, way{"", ip})
	}
	return all
}

// refusedError means that no process listens at any of the addresses.
type refusedError struct {
	error
	ways []way
}

// where lists the addresses for the user; a nil error means only loopback.
func (e *refusedError) where() string {
	if e == nil || len(e.ways) == 2 {
		return "127.0.0.1 or ::1"
	}
	var outside []string
	for _, w := range e.ways[2:] {
		outside = append(outside, w.ip)
	}
	return strings.Join(outside, " or ") + "; a process that listens only on 127.0.0.1 of a virtual machine cannot be reached from outside"
}

// dialPod connects on the first way with a listener. If all are refused, it returns a refusedError.
func dialPod(ctx context.Context, ways []way, port int) (*podConn, error) {
	var all error
	refused := true
	for _, w := range ways {
		conn, err := w.dial(ctx, port)
		if err == nil {
			return &podConn{halfCloser: conn, grace: podGrace}, nil
		}
		refused = refused && errors.Is(err, unix.ECONNREFUSED)
		all = errors.Join(all, err)
	}
	if refused {
		return nil, &refusedError{all, ways}
	}
	return nil, all
}

func (w way) dial(ctx context.Context, port int) (halfCloser, error) {
	var conn net.Conn
	dial := func() (err error) {
		d := net.Dialer{Timeout: dialTimeout}
		conn, err = d.DialContext(ctx, "tcp", net.JoinHostPort(w.ip, strconv.Itoa(port)))
		return err
	}
	var err error
	if w.netns == "" {
		err = dial()
	} else {
		err = namespaces.Do(w.netns, dial)
	}
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}
