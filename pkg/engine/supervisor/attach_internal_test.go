package supervisor

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/crilog"
)

// attachedFIFO attaches the reader that it returns to an output, with as much memory
// for those who are behind.
func attachedFIFO(t *testing.T, memory int) (*output, *os.File) {
	t.Helper()
	p, err := newProcesses()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.epoll.Close() })
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	o := &output{}
	s := &Supervisor{processes: p, backlogs: newBacklogs(memory)}
	if err := o.attach(s, stdioPaths{stdout: fifo}, nil, inputEnd{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.attached.end)
	return o, f
}

// TestAttachedWhoIsNotBehind sends no more than the FIFO of a reader holds, while others
// have used up the memory for those who are behind: it must get all of it, also when no
// goroutine comes to its turn in between.
func TestAttachedWhoIsNotBehind(t *testing.T) {
	o, f := attachedFIFO(t, 0)
	var want []byte
	got := make([]byte, chunkSize)
	for n := range 20 {
		chunk := bytes.Repeat([]byte{byte('a' + n)}, chunkSize)
		want = append(want[:0], chunk...)
		o.attached.send(crilog.Stdout, chunk)
		_ = f.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(f, got); err != nil {
			t.Fatalf("block %d: %v; the reader was cut off", n, err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("block %d differs", n)
		}
	}
}

// TestAttachedOrder has a reader that falls behind and catches up: what goes straight into
// the FIFO must not overtake what waits.
func TestAttachedOrder(t *testing.T) {
	o, f := attachedFIFO(t, attachMemory)
	const total = 3 << 20
	var want []byte
	for n := 0; len(want) < total; n++ {
		want = append(want, bytes.Repeat([]byte{byte(n)}, n%5000)...)
	}
	read := make(chan []byte)
	go func() {
		got, _ := io.ReadAll(f)
		read <- got
	}()
	for rest := want; len(rest) > 0; {
		n := min(len(rest), 20011)
		o.attached.send(crilog.Stdout, rest[:n])
		rest = rest[n:]
	}
	o.attached.end()
	if got := <-read; !bytes.Equal(got, want) {
		t.Errorf("%d bytes came, want %d, or not in order", len(got), len(want))
	}
}
