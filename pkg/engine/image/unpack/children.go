package unpack

import (
	"sync"
	"time"

	"github.com/berth-cri/berth/pkg/engine/image/layerproc"
)

const (
	// keepIdle is how long a child waits for another layer. Layers and pulls often follow each
	// other, and a start takes longer than unpacking a small layer.
	keepIdle = 10 * time.Second
	// maxIdle is the maximum number of waiting children.
	maxIdle = 2
)

// children are the processes that unpack the layers of one store.
type children struct {
	// memory is the limit of each child, in bytes.
	memory int64

	mu     sync.Mutex
	idle   map[*layerproc.Process]*time.Timer // ends the child
	closed bool
}

func newChildren(memory int64) *children {
	return &children{memory: memory, idle: map[*layerproc.Process]*time.Timer{}}
}

// take returns an idle child, or a new one. The caller must give it back.
func (c *children) take() (*layerproc.Process, error) {
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

// giveBack keeps a child for another layer, or ends it.
func (c *children) giveBack(child *layerproc.Process) {
	c.mu.Lock()
	keep := !c.closed && len(c.idle) < maxIdle && child.Usable()
	if keep {
		c.idle[child] = time.AfterFunc(keepIdle, func() { c.end(child) })
	}
	c.mu.Unlock()
	if !keep {
		child.Close()
	}
}

// end ends a child if it is still idle.
func (c *children) end(child *layerproc.Process) {
	c.mu.Lock()
	_, idle := c.idle[child]
	delete(c.idle, child)
	c.mu.Unlock()
	if idle {
		child.Close()
	}
}

// close ends the idle children. A busy one ends when it is given back.
func (c *children) close() {
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
