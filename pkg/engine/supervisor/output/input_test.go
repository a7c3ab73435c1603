package output

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// Input that was written before the first read is read, whether the writer has closed the FIFO or
// not.
func TestInputThatIsThereAlready(t *testing.T) {
	for name, stays := range map[string]bool{"writer stays": true, "writer has left": false} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "fifo")
			test.Must(t, unix.Mkfifo(path, 0o600))
			reader := test.Value(stdio.OpenReader(path))(t)
			defer reader.Close()
			writer := test.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
			defer writer.Close()
			test.Must(t, test.Err(writer.WriteString("early")))
			if !stays {
				writer.Close()
			}
			// After this time the poller has reported the input, and will not report it again.
			time.Sleep(50 * time.Millisecond)
			test.Must(t, reader.SetReadDeadline(time.Now().Add(time.Minute)))
			read := chunkReader(reader, true)
			chunk, n := read()
			if string(chunk[:n]) != "early" {
				t.Fatalf("read %q, want \"early\"", chunk[:n])
			}
			if !stays {
				if _, n := read(); n != 0 {
					t.Errorf("read %d bytes after the end", n)
				}
			}
		})
	}
}

// A FIFO that no writer has opened yet has not ended.
func TestInputWhoseWriterComesLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	test.Must(t, unix.Mkfifo(path, 0o600))
	reader := test.Value(stdio.OpenReader(path))(t)
	defer reader.Close()
	got := make(chan string, 2)
	go func() {
		read := chunkReader(reader, true)
		for range 2 {
			chunk, n := read()
			got <- string(chunk[:n])
		}
	}()
	select {
	case text := <-got:
		t.Fatalf("read %q though there was no writer", text)
	case <-time.After(50 * time.Millisecond):
	}
	test.Must(t, os.WriteFile(path, []byte("late"), 0))
	for _, want := range []string{"late", ""} {
		select {
		case text := <-got:
			test.Equal(t, "input", text, want)
		case <-time.After(time.Minute):
			t.Fatalf("nothing was read, want %q", want)
		}
	}
}
