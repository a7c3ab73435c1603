package streaming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// clients is a listener that knows its connections, and sees when a client hangs
// up even while nobody reads from it: a session whose process does not take its
// input reads no further, and one that has been told goodbye does not either.
//
// All connections hang in one epoll set that one goroutine reads through Go's own
// poller. What is waited for is that the peer closes, so that data wakes nobody.
// Clients that close only their own direction are none of SPDY or WebSocket.
type clients struct {
	net.Listener
	epoll *os.File

	mu     sync.Mutex
	serial int32
	open   map[int32]*client // guarded by mu; nil once closed
}

// client is one connection. Its context ends with it.
type client struct {
	net.Conn
	ctx    context.Context
	cancel context.CancelFunc
	forget func()
	closed atomic.Bool
	// session is set when HTTP was left for SPDY or WebSocket.
	session atomic.Bool

	reading sync.Mutex // held while reading
}

func newClients(l net.Listener) (*clients, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	// Without this os.NewFile would not give it to Go's poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	c := &clients{Listener: l, epoll: os.NewFile(uintptr(fd), "epoll"), open: map[int32]*client{}}
	go c.watch()
	return c, nil
}

// Accept returns a *client.
func (c *clients) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client, err := c.add(conn)
		if err == nil {
			return client, nil
		}
		// Without the watch it would not be known to be gone.
		log.L.WithError(errors.Join(err, conn.Close())).Warn("Failed to watch client of exec, attach or port-forward; disconnected")
	}
}

func (c *clients) add(conn net.Conn) (*client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		return nil, net.ErrClosed
	}
	c.serial++
	serial := c.serial
	if err := c.register(conn, serial); err != nil {
		return nil, err
	}
	n := &client{Conn: conn, forget: func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, serial)
	}}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	c.open[serial] = n
	c.makeRoom()
	return n, nil
}

// makeRoom disconnects the oldest connection that is not a session yet, if there are too
// many; c.mu is held.
func (c *clients) makeRoom() {
	waiting, oldest := 0, int32(math.MaxInt32)
	for serial, n := range c.open {
		if !n.session.Load() {
			waiting++
			oldest = min(oldest, serial)
		}
	}
	if n := c.open[oldest]; waiting > maxWaiting {
		delete(c.open, oldest)
		go func() { _ = n.disconnect() }() // it may have gone
	}
}

// register adds a connection to the set, which it leaves when it is closed.
func (c *clients) register(conn net.Conn, serial int32) error {
	socket, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	set, err := c.epoll.SyscallConn()
	if err != nil {
		return err
	}
	event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: serial}
	var added error
	err = socket.Control(func(fd uintptr) {
		if err := set.Control(func(epfd uintptr) {
			added = unix.EpollCtl(int(epfd), unix.EPOLL_CTL_ADD, int(fd), &event)
		}); err != nil {
			added = err
		}
	})
	return errors.Join(err, added)
}

func (c *clients) watch() {
	set, err := c.epoll.SyscallConn()
	if err != nil {
		log.L.WithError(err).Error("Failed to watch clients of exec, attach and port-forward; disconnects go unnoticed")
		return
	}
	events := make([]unix.EpollEvent, 64)
	for {
		var n int
		if err := set.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		}); err != nil {
			return
		}
		c.mu.Lock()
		for _, e := range events[:n] {
			if hungUp := c.open[e.Fd]; hungUp != nil {
				hungUp.cancel()
			}
		}
		c.mu.Unlock()
	}
}

func (c *clients) close() error {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for _, n := range open {
		_ = n.disconnect() // it may have gone
	}
	return c.epoll.Close()
}

const (
	// lingering is how long a client that was told goodbye may take to read what was
	// sent to it. Every byte that it sends meanwhile is discarded.
	lingering = time.Minute
	// brief is that of a client without a session: it was sent an error, or nothing
	// because its request did not come in time.
	brief = time.Second
	// maxWaiting bounds the connections that are not sessions yet. The oldest goes first:
	// a request takes milliseconds.
	maxWaiting = 256
)

// Close lets the client read what was sent to it, in the background. To close the
// socket at once would drop that if the client has sent what nobody has read, as a
// ping of SPDY: TCP answers with a reset. It may be called often.
//
// A session's client hangs up first, once it has read that the session is over. A
// kubelet, through which most clients come, closes both its connections as soon as
// either ends, and so would drop what its client has not read yet. A client that waits
// for the server to hang up first waits for the whole of lingering.
func (n *client) Close() error {
	if n.closed.Swap(true) {
		return nil
	}
	n.cancel()
	if !n.session.Load() {
		if err := n.Conn.(*net.TCPConn).CloseWrite(); err != nil { // the client is gone
			return n.disconnect()
		}
	}
	_ = n.SetReadDeadline(time.Now()) // whoever reads from it is told
	go n.linger()
	return nil
}

func (n *client) linger() {
	limit := brief
	if n.session.Load() {
		limit = lingering
	}
	bound := time.AfterFunc(limit, func() { _ = n.disconnect() })
	defer bound.Stop()
	n.reading.Lock() // whoever still reads has been told
	_ = n.SetReadDeadline(time.Time{})
	n.reading.Unlock()
	for buf := make([]byte, 4<<10); ; {
		if _, err := n.read(buf); err != nil {
			_ = n.disconnect()
			return
		}
	}
}

// switching begins the answer after which a connection is a session's.
const switching = "HTTP/1.1 101 "

// Write learns from the server's answer what the connection is for.
func (n *client) Write(b []byte) (int, error) {
	if !n.session.Load() && bytes.HasPrefix(b, []byte(switching)) {
		n.session.Store(true)
	}
	return n.Conn.Write(b)
}

// Read returns nothing more once the client was told goodbye.
func (n *client) Read(b []byte) (int, error) {
	if n.closed.Load() {
		return 0, net.ErrClosed
	}
	return n.read(b)
}

func (n *client) read(b []byte) (int, error) {
	n.reading.Lock()
	defer n.reading.Unlock()
	return n.Conn.Read(b)
}

// disconnect drops what the client has not read. It may be called often.
func (n *client) disconnect() error {
	n.closed.Store(true)
	n.cancel()
	n.forget()
	return n.Conn.Close()
}

// follow returns a context that ends when the client of a port-forward does. The
// stream to use instead tells it when the given one cannot say whose it is: one
// over WebSocket ends only with its connection.
func (c *clients) follow(ctx context.Context, stream io.ReadWriteCloser) (context.Context, context.CancelFunc, io.ReadWriteCloser) {
	ctx, cancel := context.WithCancel(ctx)
	ofConn, ok := stream.(interface{ RemoteAddr() net.Addr })
	if !ok {
		return ctx, cancel, endingStream{stream, cancel}
	}
	n := c.from(ofConn.RemoteAddr())
	if n == nil { // gone already
		cancel()
		return ctx, cancel, stream
	}
	stop := context.AfterFunc(n.ctx, cancel)
	return ctx, func() { stop(); cancel() }, stream
}

func (c *clients) from(address net.Addr) *client {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.open {
		if n.RemoteAddr().String() == address.String() {
			return n
		}
	}
	return nil
}

type endingStream struct {
	io.ReadWriteCloser
	ended func()
}

func (s endingStream) Read(b []byte) (int, error) {
	n, err := s.ReadWriteCloser.Read(b)
	if err != nil {
		s.ended()
	}
	return n, err
}
