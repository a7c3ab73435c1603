package supervisor

import (
	"net"
	"sync"
	"time"
)

// DefaultPatience is how long a supervisor without tasks waits for a daemon. With
// tasks it waits for ever: it holds their output and their exit codes.
const DefaultPatience = 10 * time.Minute

// callers is a listener that measures for how long no client was connected. A running
// daemon stays connected.
type callers struct {
	net.Listener
	patience time.Duration
	// leave ends the process if nothing needs it, and reports whether it does.
	leave func() bool

	mu    sync.Mutex
	here  int
	timer *time.Timer
}

// awaitCallers begins to wait. Closing the listener ends that, too.
func awaitCallers(l net.Listener, patience time.Duration, leave func() bool) *callers {
	c := &callers{Listener: l, patience: patience, leave: leave}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(patience, c.alone)
	return c
}

func (c *callers) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.here++
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
	if c.here--; c.here == 0 {
		c.timer.Reset(c.patience)
	}
}

// alone is called when no client has been connected for long. One that connects now
// gets the end of this process as the error of its first call.
func (c *callers) alone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.here == 0 && !c.leave() {
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
