package crilog_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/crilog"
)

// smallDisk mounts a file system of one MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("BERTH_TEST_REQUIRE") == "1" {
			t.Fatal("mounting a small tmpfs needs root")
		}
		t.Skip("mounting a small tmpfs needs root")
	}
	dir := t.TempDir()
	test.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { test.Check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// TestFullDiskWithinTheFirstLine has space for half of a file's first line, as after a rotation.
func TestFullDiskWithinTheFirstLine(t *testing.T) {
	dir := smallDisk(t)
	path, ballast := filepath.Join(dir, "0.log"), filepath.Join(dir, "ballast")
	test.Must(t, os.WriteFile(ballast, make([]byte, 1<<20-8<<10), 0o600))
	s := open(t, path, crilog.Options{}).Stream(crilog.Stdout)
	write(t, s, strings.Repeat("x", 12_000)+"\n")
	test.Must(t, os.Remove(ballast))
	write(t, s, "next\n")
	if kept := read(t, path); len(kept) != 1 || kept[0].content != "next" {
		t.Errorf("%d lines are kept, want only the line that fits", len(kept))
	}
}

func TestFullDiskLosesLinesAndNothingElse(t *testing.T) {
	dir := smallDisk(t)
	path, ballast := filepath.Join(dir, "0.log"), filepath.Join(dir, "ballast")
	test.Must(t, os.WriteFile(ballast, make([]byte, 600<<10), 0o600))
	var told []error
	l := open(t, path, crilog.Options{OnError: func(err error) { told = append(told, err) }})
	s := l.Stream(crilog.Stdout)
	written := 0
	// Each write has 100 lines of different lengths, so the disk becomes full within a line.
	fill := func(lines int) {
		for range lines / 100 {
			var chunk []byte
			for range 100 {
				chunk = fmt.Appendf(chunk, "%d %s\n", written, strings.Repeat("x", written%37))
				written++
			}
			write(t, s, string(chunk))
		}
	}
	fill(10_000)
	if len(told) != 1 || !errors.Is(told[0], unix.ENOSPC) {
		t.Errorf("the reported errors are %v, want one ENOSPC", told)
	}
	kept := read(t, path)
	if len(kept) == written {
		t.Fatal("the disk was not full")
	}
	// A short line may fit after a longer line did not, so lines may be missing in between.
	last := -1
	for _, l := range kept {
		var i int
		if _, err := fmt.Sscanf(l.content, "%d ", &i); err != nil || i <= last {
			t.Fatalf("%q comes after line %d", l.content, last)
		}
		if want := fmt.Sprintf("%d %s", i, strings.Repeat("x", i%37)); l.content != want || l.partial {
			t.Fatalf("line %d is %q", i, l.content)
		}
		last = i
	}

	test.Must(t, os.Remove(ballast))
	resumed := written
	fill(1000)
	after := read(t, path)[len(kept):]
	if len(after) != 1000 {
		t.Fatalf("%d lines after there was room again, want 1000", len(after))
	}
	if want := fmt.Sprint(resumed, " "); !strings.HasPrefix(after[0].content, want) {
		t.Errorf("the log continues with %q, want %q", after[0].content, want)
	}

	// The next failure is reported again.
	if err := os.WriteFile(ballast, make([]byte, 600<<10), 0o600); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	fill(10_000)
	if len(told) != 2 {
		t.Errorf("%d failures were reported, want 2", len(told))
	}
}

func TestFullDiskAtTheRotation(t *testing.T) {
	dir := smallDisk(t)
	path := filepath.Join(dir, "0.log")
	l := open(t, path, crilog.Options{})
	s := l.Stream(crilog.Stdout)
	write(t, s, "before\n")
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	test.Must(t, os.Rename(path, path+".1"))
	test.Must(t, l.Reopen())
	write(t, s, "lost\n")
	test.Must(t, os.Remove(filepath.Join(dir, "ballast")))
	write(t, s, "after\n")
	test.Equal(t, "the old file has", short(read(t, path+".1")), "F before")
	test.Equal(t, "the new file has", short(read(t, path)), "F after")
}
