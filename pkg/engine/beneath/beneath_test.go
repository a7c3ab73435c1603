package beneath_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/beneath"
)

// bed has a trusted directory (below), a symbolic link to it (root), and a file outside (victim).
type bed struct{ root, below, outside, victim string }

const content = "not a log"

func newBed(t *testing.T) bed {
	t.Helper()
	tmp := t.TempDir()
	b := bed{root: filepath.Join(tmp, "link"), below: filepath.Join(tmp, "disk"), outside: filepath.Join(tmp, "outside")}
	b.victim = filepath.Join(b.outside, "victim")
	test.Must(t, errors.Join(
		os.Mkdir(b.below, 0o755), os.Symlink(b.below, b.root), os.Mkdir(b.outside, 0o755),
		os.WriteFile(b.victim, []byte(content), 0o600),
	))
	return b
}

// TestUntrusted has links, FIFOs and the like below the directory. Read and Append
// refuse them without blocking, and the file outside stays unchanged.
func TestUntrusted(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(b bed) error
		want string
	}{
		{"the file is a link", func(b bed) error {
			return errors.Join(os.Mkdir(filepath.Join(b.below, "app"), 0o755), os.Symlink(b.victim, filepath.Join(b.below, "app/0.log")))
		}, "symbolic link"},
		{"the file is a link to what does not exist", func(b bed) error {
			return errors.Join(os.Mkdir(filepath.Join(b.below, "app"), 0o755), os.Symlink(filepath.Join(b.outside, "new"), filepath.Join(b.below, "app/0.log")))
		}, "symbolic link"},
		{"the directory is a link", func(b bed) error {
			return errors.Join(os.Symlink(b.outside, filepath.Join(b.below, "app")), os.Rename(b.victim, filepath.Join(b.outside, "0.log")))
		}, "symbolic link"},
		{"the directory is a link to a directory below", func(b bed) error {
			return errors.Join(os.Mkdir(filepath.Join(b.below, "other"), 0o755), os.Symlink("other", filepath.Join(b.below, "app")))
		}, "symbolic link"},
		{"the directory is a file", func(b bed) error {
			return os.WriteFile(filepath.Join(b.below, "app"), nil, 0o600)
		}, "not a directory"},
		{"the file is a FIFO", func(b bed) error {
			return errors.Join(os.Mkdir(filepath.Join(b.below, "app"), 0o755), unix.Mkfifo(filepath.Join(b.below, "app/0.log"), 0o600))
		}, "not a regular file"},
		{"the file is a directory", func(b bed) error { return os.MkdirAll(filepath.Join(b.below, "app/0.log"), 0o755) }, "not a regular file"},
		{"the file is a socket", func(b bed) error {
			return errors.Join(os.Mkdir(filepath.Join(b.below, "app"), 0o755), unix.Mknod(filepath.Join(b.below, "app/0.log"), unix.S_IFSOCK|0o600, 0))
		}, "not a regular file"},
		{"the file is a hard link to a file outside", func(b bed) error {
			return errors.Join(os.Mkdir(filepath.Join(b.below, "app"), 0o755), os.Link(b.victim, filepath.Join(b.below, "app/0.log")))
		}, "2 hard links"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			test.Must(t, tt.make(b))
			if f, err := beneath.Read(b.root, "app/0.log"); err == nil {
				f.Close()
				t.Error("Read opened the file")
			} else {
				test.Refused(t, err, errdefs.IsFailedPrecondition, tt.want)
			}
			err := beneath.MakeParents(b.root, "app/0.log", 0o755)
			if err == nil {
				var f *os.File
				if f, err = beneath.Append(b.root, "app/0.log", 0o640); err == nil {
					f.Close()
					t.Error("Append opened the file")
					return
				}
			}
			test.Refused(t, err, errdefs.IsFailedPrecondition, tt.want)
			untouched(t, b)
		})
	}
}

func untouched(t *testing.T, b bed) {
	t.Helper()
	entries := test.Value(os.ReadDir(b.outside))(t)
	for _, e := range entries {
		test.Equal(t, e.Name(), test.File(t, filepath.Join(b.outside, e.Name())), content)
	}
	if len(entries) != 1 {
		t.Errorf("there are %d files outside, want 1", len(entries))
	}
}

func TestMakeParentsThroughALink(t *testing.T) {
	b := newBed(t)
	test.Must(t, os.Symlink(b.outside, filepath.Join(b.below, "app")))
	test.Refused(t, beneath.MakeParents(b.root, "app/deeper/0.log", 0o755), errdefs.IsFailedPrecondition, "symbolic link")
	untouched(t, b)
}

func TestAppendAndRead(t *testing.T) {
	b := newBed(t)
	test.ErrorIs(t, test.Err(beneath.Read(b.root, "app/0.log")), fs.ErrNotExist, "Read in a missing directory")
	test.Must(t, errors.Join(beneath.MakeParents(b.root, "app/0.log", 0o755), beneath.MakeParents(b.root, "app/0.log", 0o755)))
	test.ErrorIs(t, test.Err(beneath.Read(b.root, "app/0.log")), fs.ErrNotExist, "Read of a missing file")
	for _, text := range []string{"one\n", "two\n"} {
		f := test.Value(beneath.Append(b.root, "app/0.log", 0o640))(t)
		test.Must(t, test.Err(f.WriteString(text)))
		test.Equal(t, "the file's name", f.Name(), filepath.Join(b.root, "app/0.log"))
		f.Close()
	}
	f := test.Value(beneath.Read(b.root, "app/0.log"))(t)
	defer f.Close()
	test.Equal(t, "the file's content", string(test.Value(io.ReadAll(f))(t)), "one\ntwo\n")
	if info, err := f.Stat(); err != nil || info.Mode() != 0o640 {
		t.Errorf("the file's mode is %v: %v", info.Mode(), err)
	}
}

// TestAppendWhileItIsRenamed rotates a log again and again while Append opens it.
func TestAppendWhileItIsRenamed(t *testing.T) {
	b := newBed(t)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = os.Rename(filepath.Join(b.below, "0.log"), filepath.Join(b.below, "0.log.1"))
			}
		}
	}()
	for range 1000 {
		f := test.Value(beneath.Append(b.root, "0.log", 0o640))(t)
		f.Close()
	}
	close(stop)
	<-done
}

func TestSplit(t *testing.T) {
	for _, tt := range []struct{ dir, path, root, name string }{
		{"/var/log/pods/x", "/var/log/pods/x/app/0.log", "/var/log/pods/x", "app/0.log"},
		{"/var/log/pods/x/", "/var/log/pods/x/0.log", "/var/log/pods/x/", "0.log"},
		{"", "/var/log/pods/x/app/0.log", "/var/log/pods/x/app", "0.log"},
		{"/var/log/pods/x", "/var/log/pods/y/0.log", "", ""},
		{"/var/log/pods/x", "/var/log/pods/x", "", ""},
		{"/var/log/pods/x", "/var/log/pods/x/../y/0.log", "", ""},
		{"", "0.log", "", ""},
	} {
		root, name, err := beneath.Split(tt.dir, tt.path)
		if root != tt.root || name != tt.name || (err != nil) != (tt.name == "") {
			t.Errorf("Split(%q, %q) is %q, %q, %v", tt.dir, tt.path, root, name, err)
		}
	}
}
