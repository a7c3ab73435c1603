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
				test.Equal(t, "it", test.File(t, path), content)
			}
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o646 {
				t.Errorf("its mode is %v, %v", st.Mode(), err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
				t.Errorf("beside it are %v, %v", left, err)
			}
		})
	}
}

// TestWriteBesideLeftovers has what a killed writer, or somebody else, put there.
func TestWriteBesideLeftovers(t *testing.T) {
	dir := t.TempDir()
	path, theirs := filepath.Join(dir, "file"), filepath.Join(t.TempDir(), "theirs")
	fresh := filepath.Join(dir, ".file.new")
	test.Must(t, os.WriteFile(theirs, []byte("theirs"), 0o600))
	for name, leave := range map[string]func() error{
		"half a file": func() error { return os.WriteFile(fresh, []byte("half"), 0o666) },
		"a link":      func() error { return os.Symlink(theirs, fresh) },
	} {
		test.Must(t, leave())
		test.Checkf(t, Write(path, []byte("ours"), 0o600, Relaxed), "%s", name)
		if got, _ := os.ReadFile(theirs); string(got) != "theirs" {
			t.Errorf("%s: what it leads to says %q", name, got)
		}
		if st, err := os.Lstat(path); err != nil || st.Mode() != 0o600 {
			t.Errorf("%s: its mode is %v, %v", name, st.Mode(), err)
		}
	}
}

func TestFailedWriteChangesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	test.Must(t, os.WriteFile(path, []byte("old"), 0o600))
	blocker := filepath.Join(dir, ".file.new", "full")
	test.Must(t, os.MkdirAll(blocker, 0o700))
	test.Fails(t, Write(path, []byte("new"), 0o600, Durable), "it was written where it cannot be")
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("it says %q", got)
	}
	test.ErrorIs(t, Write(filepath.Join(dir, "none", "file"), nil, 0o600, Relaxed), os.ErrNotExist, "a directory that is not there")
}

func TestExplain(t *testing.T) {
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
		if err := Explain(&os.PathError{Op: "write", Path: "/f", Err: full}); !errdefs.IsResourceExhausted(err) || !errors.Is(err, full) {
			t.Errorf("%v became %v", full, err)
		} else if again := Explain(fmt.Errorf("record: %w", err)); strings.Count(again.Error(), "inodes are free") != 1 {
			t.Errorf("twice explained: %v", again)
		}
		if err := Explain(fmt.Errorf("unshare: %w", full)); errdefs.IsResourceExhausted(err) {
			t.Errorf("a limit of the kernel is taken for a full disk: %v", err)
		}
	}
	if err := Explain(os.ErrPermission); !errors.Is(err, os.ErrPermission) || errdefs.IsResourceExhausted(err) {
		t.Errorf("got %v", err)
	}
}
