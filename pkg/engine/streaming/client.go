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

// clients is a listener that detects a client's disconnect even if no goroutine reads from the
// connection: a session stops reading when its process takes no input, or when it is closing.
//
// All connections are in one epoll set that one goroutine reads through Go's own poller. It waits
// only for the peer's close, so that data causes no wake-ups. The close is a disconnect: SPDY and
// WebSocket clients never close only their own direction.
type clients struct {
	net.Listener
	epoll *os.File

	mu     sync.Mutex
	serial int32
	open   map[int32]*client // guarded by mu; nil once closed
}

// client is one connection. Its context ends when the client disconnects.
type client struct {
	net.Conn
	ctx    context.Context
	cancel context.CancelFunc
	forget func()
	closed atomic.Bool
	// session is set when the connection was upgraded to SPDY or WebSocket.
	session atomic.Bool

	reading sync.Mutex // held while reading
}

func newClients(l net.Listener) (*clients, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create: %w", err)
	}
	// Otherwise os.NewFile would not register it with Go's poller.
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
		// Without the watch its disconnect would not be detected.
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

// makeRoom disconnects the oldest connection without a session if there are too many; c.mu is held.
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
		go func() { _ = n.disconnect() }() // it may be gone already
	}
}

// register adds a connection to the set. Closing the connection removes it.
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
		_ = n.disconnect() // it may be gone already
	}
	return c.epoll.Close()
}

const (
	// lingering is how long a session's client may take to read its last data. Everything that it
	// sends meanwhile is discarded.
	lingering = time.Minute
	// brief replaces lingering for a client without a session: it was sent an error, or nothing
	// because its request did not arrive in time.
	brief = time.Second
	// maxWaiting limits the connections without a session. The oldest is closed first: a
	// client sends its request within milliseconds.
	maxWaiting = 256
)

// Close lets the client read its last data, in the background. Closing the socket at once would
// drop that data if input of the client is still unread, such as a ping of SPDY: TCP then sends a
// reset. Close may be called repeatedly.
//
// Close leaves the disconnect to a session's client, which first reads the end of the session. Most
// clients come through a kubelet. The kubelet closes both its connections as soon as either ends,
// and would drop data that its client has not read yet. A client that waits for the server is
// disconnected after lingering.
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
	_ = n.SetReadDeadline(time.Now()) // readers get an error
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
	n.reading.Lock() // its readers have stopped
	_ = n.SetReadDeadline(time.Time{})
	n.reading.Unlock()
	for buf := make([]byte, 4<<10); ; {
		if _, err := n.read(buf); err != nil {
			_ = n.disconnect()
			return
		}
	}
}

// switching is the start of the response that turns a connection into a session.
const switching = "HTTP/1.1 101 "

// Write detects the start of a session by the server's response.
func (n *client) Write(b []byte) (int, error) {
	if !n.session.Load() && bytes.HasPrefix(b, []byte(switching)) {
		n.session.Store(true)
	}
	return n.Conn.Write(b)
}

// Read fails after Close.
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

// disconnect drops unread data. It may be called repeatedly.
func (n *client) disconnect() error {
	n.closed.Store(true)
	n.cancel()
	n.forget()
	return n.Conn.Close()
}

// follow returns a context that ends when the client of a port-forward disconnects. If the stream
// has no remote address, as over WebSocket, the returned stream ends the context instead, at
// its first read error: such a stream ends only with its connection.
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
