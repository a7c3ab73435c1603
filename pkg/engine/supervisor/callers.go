package supervisor

import (
	"net"
	"sync"
	"time"
)

// DefaultPatience is how long a supervisor without tasks waits for a daemon. With tasks it waits
// forever, because it holds their output and their exit codes.
const DefaultPatience = 10 * time.Minute

// callers is a listener that measures how long no client was connected. A running daemon stays
// connected.
type callers struct {
	net.Listener
	patience time.Duration
	// leave shuts the process down if there are no tasks, and reports whether it did.
	leave func() bool

	mu        sync.Mutex
	connected int
	timer     *time.Timer
}

// awaitCallers starts the timer. Closing the listener stops it.
func awaitCallers(l net.Listener, patience time.Duration, leave func() bool) *callers {
	c := &callers{Listener: l, patience: patience, leave: leave}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(patience, c.idle)
	return c
}

func (c *callers) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected++
	c.timer.Stop()
	return &caller{Conn: conn, gone: sync.OnceFunc(c.gone)}, nil
}

func (c *callers) Close() error {
	c.timer.Stop()
	return c.Listener.Close()
}

func (c *callers) gone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected--; c.connected == 0 {
		c.timer.Reset(c.patience)
	}
}

// idle is called when no client has been connected for patience. If leave shuts the process down, a
// client that connects at that moment gets an error from its first call.
func (c *callers) idle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connected == 0 && !c.leave() {
		c.timer.Reset(c.patience)
	}
}

type caller struct {
	net.Conn
	gone func()
}

func (c *caller) Close() error {
	c.gone()
	return c.Conn.Close()
}
