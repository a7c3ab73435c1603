package crilog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/crilog"
)

// The log is rotated again and again while two streams write: the files, in the order
// of the rotations, have every line once and in order.
func TestRotationUnderLoadLosesAndDoublesNothing(t *testing.T) {
	const lines, rotations = 30_000, 50
	path := filepath.Join(t.TempDir(), "0.log")
	l := open(t, path, crilog.Options{MaxLine: 64})
	var writers sync.WaitGroup
	written := make(chan struct{})
	for _, name := range []string{crilog.Stdout, crilog.Stderr} {
		writers.Go(func() {
			s := l.Stream(name)
			for i := range lines {
				write(t, s, fmt.Sprintf("%d %s\n", i, strings.Repeat("x", i%100)))
			}
		})
	}
	go func() { writers.Wait(); close(written) }()
	var files []string
	for n := 0; n < rotations; n++ {
		old := fmt.Sprintf("%s.%d", path, n)
		test.Must(t, os.Rename(path, old))
		files = append(files, old)
		test.Must(t, l.Reopen())
		test.Mustf(t, test.Err(os.Stat(path)), "after Reopen")
	}
	<-written
	next, begun := map[string]int{}, map[string]string{}
	for _, file := range append(files, path) {
		for _, l := range read(t, file) {
			begun[l.stream] += l.content
			if l.partial {
				continue
			}
			i := next[l.stream]
			if want := fmt.Sprintf("%d %s", i, strings.Repeat("x", i%100)); begun[l.stream] != want {
				t.Fatalf("%s: got %q, want %q", l.stream, begun[l.stream], want)
			}
			next[l.stream], begun[l.stream] = i+1, ""
		}
	}
	if next[crilog.Stdout] != lines || next[crilog.Stderr] != lines {
		t.Errorf("lines of each stream: %v, want %d", next, lines)
	}
}

func TestReopenGoesOnInTheFileThatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	l := open(t, path, crilog.Options{})
	s := l.Stream(crilog.Stdout)
	write(t, s, "a\nb")
	for range 2 {
		test.Must(t, l.Reopen())
	}
	write(t, s, "c\n")
	test.Equal(t, "the result", short(read(t, path)), "F a|F bc")
}

func TestReopenThatFailsKeepsTheOldFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pod")
	test.Must(t, os.Mkdir(dir, 0o755))
	l := open(t, filepath.Join(dir, "0.log"), crilog.Options{})
	test.Must(t, os.Rename(dir, dir+".old"))
	test.ErrorIs(t, l.Reopen(), os.ErrNotExist, "Reopen")
	write(t, l.Stream(crilog.Stdout), "a\n")
	test.Equal(t, "the result", short(read(t, filepath.Join(dir+".old", "0.log"))), "F a")
}

func TestClosedLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	l := open(t, path, crilog.Options{})
	s := l.Stream(crilog.Stdout)
	write(t, s, "a\nb")
	for range 2 {
		test.Must(t, l.Close())
	}
	test.ErrorIs(t, l.Reopen(), crilog.ErrClosed, "Reopen")
	write(t, s, "c\n")
	end(t, s)
	test.Equal(t, "the result", short(read(t, path)), "F a")
}
