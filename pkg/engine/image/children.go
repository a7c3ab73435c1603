package image

import (
	"sync"
	"time"

	"github.com/berth-cri/berth/pkg/engine/image/layerproc"
)

// keepIdle is how long a child waits for another layer. Layers and pulls often follow each
// other, and to start a child takes longer than to unpack a small layer.
const keepIdle = 10 * time.Second

// children are the processes that unpack layers, of one store.
type children struct {
	// memory bounds that of each.
	memory int64

	mu     sync.Mutex
	idle   []*layerproc.Process // no more than layers are unpacked at the same time
	expiry *time.Timer          // ends the idle ones
	closed bool
}

func newChildren(memory int64) *children {
	c := &children{memory: memory}
	c.expiry = time.AfterFunc(keepIdle, c.endIdle)
	return c
}

// take returns an idle child, or a new one.
func (c *children) take() (*layerproc.Process, error) {
	c.mu.Lock()
	for len(c.idle) > 0 {
		last := len(c.idle) - 1
		child := c.idle[last]
		c.idle = c.idle[:last]
		if child.Usable() {
			c.mu.Unlock()
			return child, nil
		}
		child.Close()
	}
	c.mu.Unlock()
	return layerproc.Start(c.memory)
}

// giveBack takes a child that has unpacked a layer, or failed to.
func (c *children) giveBack(child *layerproc.Process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || !child.Usable() {
		child.Close()
		return
	}
	c.idle = append(c.idle, child)
	c.expiry.Reset(keepIdle)
}

func (c *children) endIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, child := range c.idle {
		child.Close()
	}
	c.idle = nil
}

// close ends the children. One at work ends after its layer.
func (c *children) close() {
	c.mu.Lock()
	c.closed = true
	c.expiry.Stop()
	c.mu.Unlock()
	c.endIdle()
}
