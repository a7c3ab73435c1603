package supervisor

import (
	"sync"
	"time"
)

const (
	// attachBacklog is how many bytes one attached reader may be behind, beside
	// what its FIFO holds.
	attachBacklog = 4 << 20
	// attachMemory is how much memory the readers of all containers may take
	// together by being behind: one supervisor serves many pods.
	attachMemory = 8 << 20
	// blockSize is the least that is taken at once for what is pending.
	blockSize = 4 << 10
)

// backlogs is the memory for what attached readers have not read yet. When it is
// used up, the reader that has taken nothing for the longest time is cut off, so
// that those who do not read take nothing from those who do.
type backlogs struct {
	limit int

	mu   sync.Mutex
	used int
	// since is when each stream that has something pending took something last.
	since map[*backlog]time.Time
}

func newBacklogs(limit int) *backlogs {
	return &backlogs{limit: limit, since: map[*backlog]time.Time{}}
}

// backlog is what one stream's reader has not read yet. Its fields are guarded by
// backlogs.mu.
type backlog struct {
	all *backlogs
	// cutOff is called, in a goroutine of its own, when the reader is too far behind.
	cutOff func()
	// wake has room for one sign that the fields below have changed.
	wake chan struct{}

	blocks  [][]byte
	size    int // of the blocks and of what is being written
	ended   bool
	dropped bool
}

func (b *backlogs) stream(cutOff func()) *backlog {
	return &backlog{all: b, cutOff: cutOff, wake: make(chan struct{}, 1)}
}

// add takes a copy of a chunk.
func (s *backlog) add(chunk []byte) {
	b := s.all
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.dropped || s.ended {
		return
	}
	if n := len(s.blocks); n > 0 {
		last := s.blocks[n-1]
		fits := min(len(chunk), cap(last)-len(last))
		s.blocks[n-1] = append(last, chunk[:fits]...)
		chunk = chunk[fits:]
	}
	if need := max(blockSize, len(chunk)); len(chunk) > 0 {
		if s.size+need > attachBacklog {
			b.drop(s)
			return
		}
		b.makeRoom(need)
		if s.dropped || b.used+need > b.limit {
			b.drop(s)
			return
		}
		if s.size == 0 {
			b.since[s] = time.Now()
		}
		s.blocks = append(s.blocks, append(make([]byte, 0, need), chunk...))
		s.size += need
		b.used += need
	}
	s.changed()
}

// isEmpty says whether all that was added has been written. It stays so until add.
func (s *backlog) isEmpty() bool {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	return s.size == 0 && !s.dropped && !s.ended
}

// makeRoom cuts readers off until there is room or nobody is behind.
func (b *backlogs) makeRoom(need int) {
	for b.used+need > b.limit && len(b.since) > 0 {
		b.drop(b.slowest())
	}
}

// slowest is the stream whose reader has taken nothing for the longest time.
func (b *backlogs) slowest() *backlog {
	var slowest *backlog
	for s, since := range b.since {
		if slowest == nil || since.Before(b.since[slowest]) {
			slowest = s
		}
	}
	return slowest
}

// drop forgets what is pending of a stream and cuts its reader off.
func (b *backlogs) drop(s *backlog) {
	if s.dropped {
		return
	}
	b.release(s, s.size)
	s.dropped, s.blocks = true, nil
	s.changed()
	go s.cutOff()
}

func (b *backlogs) release(s *backlog, size int) {
	b.used -= size
	s.size -= size
	delete(b.since, s)
	if s.size > 0 {
		b.since[s] = time.Now()
	}
}

// end lets the reader read the rest.
func (s *backlog) end() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.ended = true
	s.changed()
}

// forget gives up what is pending.
func (s *backlog) forget() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.release(s, s.size)
	s.dropped, s.ended, s.blocks = true, true, nil
	s.changed()
}

func (s *backlog) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take waits for something to write; nothing is the end. Who has taken something
// calls wrote before it takes more.
func (s *backlog) take() []byte {
	for {
		s.all.mu.Lock()
		var block []byte
		if len(s.blocks) > 0 {
			block, s.blocks[0] = s.blocks[0], nil
			s.blocks = s.blocks[1:]
		}
		over := s.ended || s.dropped
		s.all.mu.Unlock()
		if block != nil || over {
			return block
		}
		<-s.wake
	}
}

// wrote gives back the memory of what was taken.
func (s *backlog) wrote(block []byte) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if !s.dropped { // else it was given back then
		s.all.release(s, cap(block))
	}
}

func (s *backlog) hasEnded() bool {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	return s.ended
}
