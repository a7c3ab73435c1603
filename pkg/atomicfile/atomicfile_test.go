package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestWrite(t *testing.T) {
	for name, d := range map[string]Durability{"relaxed": Relaxed, "durable": Durable} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			for _, content := range []string{"first", "second", ""} {
				test.Must(t, Write(path, []byte(content), 0o646, d))
				test.Equal(t, "the content", test.File(t, path), content)
			}
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o646 {
				t.Errorf("the mode is %v, %v", st.Mode(), err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("the directory contains %v, %v", left, err)
			}
		})
	}
}

// TestWriteBesideLeftovers has leftovers of a killed writer at the temporary path, or a link there.
func TestWriteBesideLeftovers(t *testing.T) {
	dir := t.TempDir()
	path, theirs := filepath.Join(dir, "file"), filepath.Join(t.TempDir(), "theirs")
	fresh := filepath.Join(dir, ".file.new")
	test.Must(t, os.WriteFile(theirs, []byte("theirs"), 0o600))
	for name, leave := range map[string]func() error{
		"incomplete file": func() error { return os.WriteFile(fresh, []byte("half"), 0o666) },
		"a link":          func() error { return os.Symlink(theirs, fresh) },
	} {
		test.Must(t, leave())
		test.Checkf(t, Write(path, []byte("ours"), 0o600, Relaxed), "%s", name)
		if got, _ := os.ReadFile(theirs); string(got) != "theirs" {
			t.Errorf("%s: the target of the link now contains %q", name, got)
		}
		if st, err := os.Lstat(path); err != nil || st.Mode() != 0o600 {
			t.Errorf("%s: the mode is %v, %v", name, st.Mode(), err)
		}
	}
}

func TestSymlink(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "link")
	test.Must(t, os.Symlink("left by a killed writer", TempPath(path)))
	for _, target := range []string{"first", "second"} {
		test.Must(t, Symlink(target, path))
		if got, err := os.Readlink(path); err != nil || got != target {
			t.Errorf("the link leads to %q, %v", got, err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("the directory contains %v, %v", left, err)
	}
}

func TestFailedWriteChangesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	test.Must(t, os.WriteFile(path, []byte("old"), 0o600))
	blocker := filepath.Join(dir, ".file.new", "full")
	test.Must(t, os.MkdirAll(blocker, 0o700))
	test.Fails(t, Write(path, []byte("new"), 0o600, Durable), "Write succeeded although its temporary path is blocked")
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("the file contains %q", got)
	}
	test.ErrorIs(t, Write(filepath.Join(dir, "none", "file"), nil, 0o600, Relaxed), os.ErrNotExist, "write into a missing directory")
}

func TestExplain(t *testing.T) {
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
		if err := Explain(&os.PathError{Op: "write", Path: "/f", Err: full}); !errdefs.IsResourceExhausted(err) || !errors.Is(err, full) {
			t.Errorf("%v is explained as %v", full, err)
		} else if again := Explain(fmt.Errorf("record: %w", err)); strings.Count(again.Error(), "inodes are free") != 1 {
			t.Errorf("explained twice: %v", again)
		}
		if err := Explain(fmt.Errorf("unshare: %w", full)); errdefs.IsResourceExhausted(err) {
			t.Errorf("a limit of the kernel is taken for a full disk: %v", err)
		}
	}
	if err := Explain(os.ErrPermission); !errors.Is(err, os.ErrPermission) || errdefs.IsResourceExhausted(err) {
		t.Errorf("got %v", err)
	}
}
