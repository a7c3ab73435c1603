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

// attachedFIFO attaches a new FIFO to an output, and returns the FIFO's reading end.
func attachedFIFO(t *testing.T, o *Output, s *watches) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	f := fifo(t, path, os.O_RDONLY)
	t.Cleanup(func() { f.Close() })
	test.Must(t, o.Attach(s, stdio.Paths{Stdout: path}, nil, InputEnd{}))
	return f
}

// TestAttachedWhoIsNotBehind sends blocks that fit into a reader's FIFO. send must write each block
// directly, so that none waits in the backlog for another goroutine.
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
				t.Fatalf("block %d is in the backlog of a reader that is not behind", n)
			}
		}
		_ = f.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(f, got); err != nil || !bytes.Equal(got, chunk) {
			t.Fatalf("block %d was read with other bytes, or with the error %v", n, err)
		}
	}
}

// TestAttachedWhoDoesNotRead has one reader that reads nothing, and one that falls behind and
// catches up. The first is detached. The second gets all bytes in order, although some wait in the
// backlog.
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
		test.Mustf(t, test.Err(io.ReadFull(f, got[read:sent])), "read after %d bytes", read)
		read = sent
	}
	if !bytes.Equal(got, want) {
		t.Error("the reader got other bytes than were sent")
	}
	test.Eventually(t, "the reader that reads nothing is detached", func() bool {
		_, err := os.Lstat(unread.Name())
		return errors.Is(err, os.ErrNotExist) && openBelow(t, unread.Name()) == 1 // the reader's own end
	})
	o.attached.end()
	if rest, err := io.ReadAll(f); len(rest) > 0 || err != nil {
		t.Errorf("after the end the reader got %d more bytes, %v", len(rest), err)
	}
}

// The block that is being written counts against the limit. Data that was added before the end is
// still written.
func TestBacklog(t *testing.T) {
	b := newBacklog()
	block := func(n int) {
		t.Helper()
		if got := len(b.take()); got != n {
			t.Fatalf("take returned %d bytes, want %d", got, n)
		}
	}
	if !b.add(make([]byte, attachBacklog)) {
		t.Fatal("an empty backlog does not accept attachBacklog bytes")
	}
	block(chunkSize)
	block(chunkSize) // take implies that the first block was written
	if !b.add(make([]byte, chunkSize)) || b.add([]byte("x")) {
		t.Error("the block that is being written does not count against the limit")
	}
	block(0)
	b = newBacklog()
	b.add([]byte("last"))
	b.end()
	if !b.hasEnded() || b.isEmpty() || !b.add([]byte("late")) {
		t.Error("after end the backlog has not ended, is empty, or rejects data")
	}
	block(4)
	block(0)
}
