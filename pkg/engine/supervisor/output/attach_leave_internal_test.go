package output

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// watches counts the watches that were not removed.
type watches struct {
	*processes.Set
	held atomic.Int64
}

func watching(t *testing.T) *watches {
	t.Helper()
	p := test.Value(processes.New())(t)
	t.Cleanup(func() { _ = p.Close() })
	go p.Run(context.WithoutCancel(t.Context()))
	return &watches{Set: p}
}

func (w *watches) Watch(fd int, events uint32, fire func()) (uint32, error) {
	serial, err := w.Set.Watch(fd, events, fire)
	if err == nil {
		w.held.Add(1)
	}
	return serial, err
}

func (w *watches) Unwatch(serial uint32) {
	w.Set.Unwatch(serial)
	if serial != 0 {
		w.held.Add(-1)
	}
}

func fifo(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	test.Must(t, unix.Mkfifo(path, 0o600))
	return test.Value(os.OpenFile(path, flags|unix.O_NONBLOCK, 0))(t)
}

// openBelow returns the number of this process's open files whose paths begin with path.
func openBelow(t *testing.T, path string) (n int) {
	t.Helper()
	entries := test.Value(os.ReadDir("/proc/self/fd"))(t)
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && strings.HasPrefix(target, path) {
			n++
		}
	}
	return n
}

// A reader may close its FIFOs while it is being attached. This test also looks for data races.
func TestReadersThatLeaveWhileTheyAttach(t *testing.T) {
	s := watching(t)
	dir := t.TempDir()
	for n := range 2000 {
		paths := stdio.Paths{Stdout: filepath.Join(dir, "out"), Stderr: filepath.Join(dir, "err")}
		out, stderr := fifo(t, paths.Stdout, os.O_RDONLY), fifo(t, paths.Stderr, os.O_RDONLY)
		o, left := &Output{}, make(chan struct{})
		go func() {
			defer close(left)
			for begin := time.Now(); time.Since(begin) < time.Duration(n%200)*time.Microsecond; {
				runtime.Gosched()
			}
			out.Close()
			stderr.Close()
		}()
		_ = o.Attach(s, paths, nil, InputEnd{}) // fails if the reader has already left
		<-left
		os.Remove(paths.Stdout)
		os.Remove(paths.Stderr)
	}
	test.Eventually(t, "no file is left open or watched", func() bool {
		return s.held.Load() == 0 && openBelow(t, dir) == 0
	})
}

// Sessions write to a container that does not read its stdin, and leave: none of their files stay
// open. Once the container reads again, it gets the input of the next session.
func TestInputOfThoseWhoLeft(t *testing.T) {
	t.Parallel()
	s := watching(t)
	dir := t.TempDir()
	container := fifo(t, filepath.Join(dir, "container"), os.O_RDONLY)
	defer container.Close()
	stdin := test.Value(stdio.OpenWriter(filepath.Join(dir, "container")))(t)
	defer stdin.Close()
	o := &Output{}
	attach := func(text []byte) {
		t.Helper()
		paths := stdio.Paths{Stdin: filepath.Join(dir, "in"), Stdout: filepath.Join(dir, "out")}
		in, out := fifo(t, paths.Stdin, os.O_RDWR), fifo(t, paths.Stdout, os.O_RDONLY)
		test.Must(t, o.Attach(s, paths, stdin, InputEnd{}))
		_ = in.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = in.Write(text)
		in.Close()
		out.Close()
		os.Remove(paths.Stdin)
		os.Remove(paths.Stdout)
	}
	const sessions = 20
	for range sessions {
		attach(make([]byte, 200<<10))
	}
	test.Eventually(t, "the input of sessions that left is dropped", func() bool { return openBelow(t, filepath.Join(dir, "in")) == 0 })

	go func() {
		for b := make([]byte, 64<<10); ; {
			if n, err := container.Read(b); n == 0 && err != nil {
				return
			}
		}
	}()
	written := make(chan error, 1)
	go func() { written <- o.attached.write(t.Context(), stdin, make([]byte, 300<<10)) }()
	select {
	case err := <-written:
		test.Checkf(t, err, "write the next input")
	case <-time.After(time.Minute):
		t.Error("the next input does not reach the container")
	}
}
