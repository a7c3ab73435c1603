package supervisor

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// backlogBed has streams that nobody reads but the test.
type backlogBed struct {
	all *backlogs
	cut chan string
}

func newBacklogBed(limit int) *backlogBed {
	return &backlogBed{newBacklogs(limit), make(chan string, 100)}
}

func (b *backlogBed) stream(name string) *backlog {
	return b.all.stream(func() { b.cut <- name })
}

// cutOff are those that were cut off, in alphabetical order.
func (b *backlogBed) cutOff(t *testing.T, n int) string {
	t.Helper()
	var names []string
	for range n {
		select {
		case name := <-b.cut:
			names = append(names, name)
		case <-time.After(time.Minute):
			t.Fatalf("only %q were cut off, want %d", names, n)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (b *backlogBed) uses(t *testing.T, want int) {
	t.Helper()
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	if b.all.used != want {
		t.Errorf("%d bytes are used, want %d", b.all.used, want)
	}
}

func readAll(s *backlog) []byte {
	var got []byte
	for {
		block := s.take()
		if block == nil {
			return got
		}
		got = append(got, block...)
		s.wrote(block)
	}
}

func TestBacklogKeepsAllInOrder(t *testing.T) {
	b := newBacklogBed(attachMemory)
	s := b.stream("s")
	var want []byte
	for n := range 1000 {
		chunk := bytes.Repeat([]byte(fmt.Sprint(n)), n%300)
		want = append(want, chunk...)
		s.add(chunk)
	}
	s.end()
	if got := readAll(s); !bytes.Equal(got, want) {
		t.Errorf("%d bytes came, want %d, or not the same", len(got), len(want))
	}
	b.uses(t, 0)
}

func TestBacklogOfOneReader(t *testing.T) {
	b := newBacklogBed(attachMemory)
	s := b.stream("s")
	chunk := make([]byte, 32<<10)
	for range attachBacklog/len(chunk) + 1 {
		s.add(chunk)
	}
	if got := b.cutOff(t, 1); got != "s" {
		t.Error(got)
	}
	b.uses(t, 0)
	if block := s.take(); block != nil {
		t.Errorf("%d bytes are left to one that was cut off", len(block))
	}
	s.add(chunk)
	b.uses(t, 0)
}

// TestBacklogsOfMany has two readers that take nothing, and one that takes what it
// gets. Room is made by those that wait longest.
func TestBacklogsOfMany(t *testing.T) {
	const chunk = 32 << 10
	b := newBacklogBed(10 * chunk)
	first, second, reading := b.stream("first"), b.stream("second"), b.stream("reading")
	data := make([]byte, chunk)
	for range 4 {
		first.add(data)
		second.add(data)
		reading.add(data)
		reading.wrote(reading.take())
	}
	b.uses(t, 8*chunk)
	for range 3 {
		reading.add(data)
	}
	if got := b.cutOff(t, 1); got != "first" {
		t.Error(got)
	}
	b.uses(t, 7*chunk)
	for range 7 {
		reading.add(data)
	}
	if got := b.cutOff(t, 1); got != "second" {
		t.Error(got)
	}
	reading.end()
	if got := len(readAll(reading)); got != 10*chunk {
		t.Errorf("who reads got %d bytes, want %d", got, 10*chunk)
	}
	b.uses(t, 0)
}

// TestBacklogInFlight gives memory back once: when its reader is cut off, or when
// it was written.
func TestBacklogInFlight(t *testing.T) {
	b := newBacklogBed(attachMemory)
	s, other := b.stream("s"), b.stream("other")
	s.add(make([]byte, blockSize))
	other.add(make([]byte, blockSize))
	block := s.take()
	b.uses(t, 2*blockSize)
	s.forget()
	b.uses(t, blockSize)
	s.wrote(block)
	b.uses(t, blockSize)
	other.forget()
	b.uses(t, 0)
}
