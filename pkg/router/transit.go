package router

import (
	"sync"
	"time"

	"google.golang.org/grpc/mem"
)

const (
	// huge is from where on answers are handed to connections one after another, in bytes.
	huge = 1 << 20
	// transitPatience bounds how long an answer waits for a client that does not read
	// the one before.
	transitPatience = 10 * time.Second
)

// transit keeps answers that are huge from piling up in memory behind connections,
// which take them as a whole and send them when their clients read.
type transit struct {
	mu   sync.Mutex
	last chan struct{} // closed when the answer before was sent, or dropped; nil is none
}

// buffer waits for its turn, which passes on when the buffer is not used any more.
func (t *transit) buffer(data []byte) mem.Buffer {
	sent := make(chan struct{})
	t.mu.Lock()
	before := t.last
	t.last = sent
	t.mu.Unlock()
	if before != nil {
		patience := time.NewTimer(transitPatience)
		defer patience.Stop()
		select {
		case <-before:
		case <-patience.C:
		}
	}
	return mem.NewBuffer(&data, onFree(func() { close(sent) }))
}

// onFree is a pool that only hears of the end of a buffer.
type onFree func()

// Get implements mem.BufferPool.
func (onFree) Get(size int) *[]byte { b := make([]byte, size); return &b }

// Put implements mem.BufferPool.
func (f onFree) Put(*[]byte) { f() }
