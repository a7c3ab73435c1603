package output

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/crilog"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// attachedFIFO attaches the reader that it returns to an output.
func attachedFIFO(t *testing.T, o *Output, s *watches) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	f := fifo(t, path, os.O_RDONLY)
	t.Cleanup(func() { f.Close() })
	test.Must(t, o.Attach(s, stdio.Paths{Stdout: path}, nil, InputEnd{}))
	return f
}

// TestAttachedWhoIsNotBehind sends no more than the FIFO of a reader holds: all of it must be there at
// once, also when no goroutine comes to its turn in between.
func TestAttachedWhoIsNotBehind(t *testing.T) {
	o := &Output{}
	f := attachedFIFO(t, o, watching(t))
	defer o.attached.end()
	got := make([]byte, chunkSize)
	for n := range 20 {
		chunk := bytes.Repeat([]byte{byte('a' + n)}, chunkSize)
		o.attached.send(crilog.Stdout, chunk)
		for at := range o.attached.all {
			if !at.streams[crilog.Stdout].isEmpty() {
				t.Fatalf("block %d counts against a reader that is not behind", n)
			}
		}
		_ = f.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, chunk) {
			t.Fatalf("block %d: %v, or another one", n, err)
		}
	}
}

// TestAttachedWhoDoesNotRead has one reader that reads nothing, and one that falls behind and catches
// up. The first is cut off. For the second, what goes straight into the FIFO must not overtake what waits.
func TestAttachedWhoDoesNotRead(t *testing.T) {
	o, s := &Output{}, watching(t)
	unread, f := attachedFIFO(t, o, s), attachedFIFO(t, o, s)
	const total = 3 * attachBacklog
	var want []byte
	for n := 0; len(want) < total; n++ {
		want = append(want, bytes.Repeat([]byte{byte(n)}, n%5000)...)
	}
	got := make([]byte, len(want))
	const step = 20011 // a third of what a FIFO holds
	for sent, read := 0, 0; sent < len(want); {
		n := min(len(want)-sent, step)
		o.attached.send(crilog.Stdout, want[sent:sent+n])
		if sent += n; sent-read < attachBacklog/2 && sent < len(want) {
			continue
		}
		_ = f.SetReadDeadline(time.Now().Add(time.Minute))
		test.Mustf(t, test.Err(io.ReadFull(f, got[read:sent])), "after %d bytes", read)
		read = sent
	}
	if !bytes.Equal(got, want) {
		t.Error("bytes are not in order")
	}
	test.Eventually(t, "the reader that reads nothing is cut off", func() bool {
		_, err := os.Lstat(unread.Name())
		return errors.Is(err, os.ErrNotExist) && openBelow(t, unread.Name()) == 1 // its own end
	})
	o.attached.end()
	if rest, err := io.ReadAll(f); len(rest) > 0 || err != nil {
		t.Errorf("%d bytes more, %v", len(rest), err)
	}
}

// What is being written counts, and what was added before the end is written.
func TestBacklog(t *testing.T) {
	b := newBacklog()
	block := func(n int) {
		t.Helper()
		if got := len(b.take()); got != n {
			t.Fatalf("took %d bytes, want %d", got, n)
		}
	}
	if !b.add(make([]byte, attachBacklog)) {
		t.Fatal("there is no room in an empty one")
	}
	block(chunkSize)
	block(chunkSize) // the first was written
	if !b.add(make([]byte, chunkSize)) || b.add([]byte("x")) {
		t.Error("what is being written does not count")
	}
	block(0)
	b = newBacklog()
	b.add([]byte("last"))
	b.end()
	if !b.hasEnded() || b.isEmpty() || !b.add([]byte("late")) {
		t.Error("it has not ended, or is full")
	}
	block(4)
	block(0)
}
