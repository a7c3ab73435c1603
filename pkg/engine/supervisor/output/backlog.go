package output

import "sync"

// attachBacklog is how many bytes of one stream an attached reader may be behind, beyond the FIFO's
// content.
const attachBacklog = 1 << 20

// backlog holds the output that one stream's reader has not read yet.
type backlog struct {
	mu      sync.Mutex
	changed sync.Cond
	pending []byte
	writing int // bytes that take returned last
	ended   bool
}

func newBacklog() *backlog {
	b := &backlog{}
	b.changed.L = &b.mu
	return b
}

// add appends a copy of a chunk, unless the backlog has ended. If the reader is too far behind, it
// drops the pending data and returns false.
func (b *backlog) add(chunk []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.ended:
	case len(b.pending)+b.writing+len(chunk) > attachBacklog:
		b.pending, b.ended = nil, true
		b.changed.Signal()
		return false
	default:
		b.pending = append(b.pending, chunk...)
		b.changed.Signal()
	}
	return true
}

// isEmpty reports whether all added data was written and more may be added. It stays true until
// add, end or forget.
func (b *backlog) isEmpty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending)+b.writing == 0 && !b.ended
}

// end marks the end; take still returns the pending data.
func (b *backlog) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.changed.Signal()
}

// forget drops the pending data.
func (b *backlog) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending, b.ended = nil, true
	b.changed.Signal()
}

// take waits for data and returns a block to write, or nil at the end. The caller has written the
// previous block.
func (b *backlog) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing = 0
	for len(b.pending) == 0 {
		if b.ended {
			return nil
		}
		b.pending = nil
		b.changed.Wait()
	}
	b.writing = min(len(b.pending), chunkSize)
	block := b.pending[:b.writing]
	b.pending = b.pending[b.writing:]
	return block
}

func (b *backlog) hasEnded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}
