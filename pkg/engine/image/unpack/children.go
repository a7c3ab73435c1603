package unpack

import (
	"sync"
	"time"

	"github.com/berth-cri/berth/pkg/engine/image/layerproc"
)

const (
	// keepIdle is how long a child waits for another layer. Layers and pulls often follow
	// each other, and to start a child takes longer than to unpack a small layer.
	keepIdle = 10 * time.Second
	// MaxIdle is how many wait.
	MaxIdle = 2
)

// Children are the processes that unpack layers, of one store.
type Children struct {
	// memory bounds that of each.
	memory int64

	mu     sync.Mutex
	idle   map[*layerproc.Process]*time.Timer // which ends it
	closed bool
}

// NewChildren returns the children of a store, each with so many bytes of memory.
func NewChildren(memory int64) *Children {
	return &Children{memory: memory, idle: map[*layerproc.Process]*time.Timer{}}
}

// Take returns an idle child, or a new one. The caller gives it back.
func (c *Children) Take() (*layerproc.Process, error) {
	c.mu.Lock()
	for child, expiry := range c.idle {
		expiry.Stop()
		delete(c.idle, child)
		if child.Usable() {
			c.mu.Unlock()
			return child, nil
		}
		child.Close() // it has exited
	}
	c.mu.Unlock()
	return layerproc.Start(c.memory)
}

// GiveBack keeps a child for another layer, or ends it.
func (c *Children) GiveBack(child *layerproc.Process) {
	c.mu.Lock()
	keep := !c.closed && len(c.idle) < MaxIdle && child.Usable()
	if keep {
		c.idle[child] = time.AfterFunc(keepIdle, func() { c.End(child) })
	}
	c.mu.Unlock()
	if !keep {
		child.Close()
	}
}

// End ends a child if it is idle still.
func (c *Children) End(child *layerproc.Process) {
	c.mu.Lock()
	_, idle := c.idle[child]
	delete(c.idle, child)
	c.mu.Unlock()
	if idle {
		child.Close()
	}
}

// Close ends the children. One at work ends when it is given back.
func (c *Children) Close() {
	c.mu.Lock()
	c.closed = true
	idle := c.idle
	c.idle = nil
	c.mu.Unlock()
	for child, expiry := range idle {
		expiry.Stop()
		child.Close()
	}
}
