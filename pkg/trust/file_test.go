package trust

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

const stranger = 12345

func must(t *testing.T, errs ...error) {
	t.Helper()
	test.Must(t, errors.Join(errs...))
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("giving files to another user needs root")
	}
}

// TestCheck checks the path d/f/file after each change of files and links in d.
func TestCheck(t *testing.T) {
	needRoot(t)
	for name, c := range map[string]struct {
		make func(d string) error
		want string
	}{
		"only root": {func(string) error { return nil }, ""},
		"missing":   {func(d string) error { return os.Remove(d + "/f/file") }, "no such file"},
		"missing in a directory for all": {func(d string) error {
			return errors.Join(os.Remove(d+"/f/file"), os.Chmod(d+"/f", 0o777))
		}, "chmod o-w $D/f"},
		"not a directory above": {func(d string) error {
			return errors.Join(os.RemoveAll(d+"/f"), os.WriteFile(d+"/f", nil, 0o600))
		}, "not a directory"},
		"links in a circle": {func(d string) error {
			return errors.Join(os.Remove(d+"/f/file"), os.Symlink("other", d+"/f/file"), os.Symlink("file", d+"/f/other"))
		}, "too many levels"},
		"link up and down": {func(d string) error {
			return errors.Join(os.Mkdir(d+"/g", 0o755), os.Rename(d+"/f/file", d+"/g/file"), os.Symlink("../g/./file", d+"/f/file"))
		}, ""},
		"directory at the end of two links": {func(d string) error {
			return errors.Join(os.Mkdir(d+"/g", 0o755), os.Mkdir(d+"/h", 0o755), os.Rename(d+"/f/file", d+"/h/file"),
				os.Symlink("../h/file", d+"/g/link"), os.Symlink("../g/link", d+"/f/file"), os.Chmod(d+"/h", 0o777))
		}, "chmod o-w $D/h"},
		"another's directory above": {func(d string) error { return os.Chown(d+"/f", stranger, 0) }, "chown root $D/f"},
		"file for a group":          {func(d string) error { return os.Chmod(d+"/f/file", 0o664) }, "chmod g-w $D/f/file"},
	} {
		t.Run(name, func(t *testing.T) {
			d := t.TempDir()
			must(t, os.Mkdir(d+"/f", 0o755), os.WriteFile(d+"/f/file", []byte("text"), 0o644))
			must(t, c.make(d))
			err := Check(d+"/f/file", Configuration)
			if want := strings.ReplaceAll(c.want, "$D", d); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("Check returned %v, want %q", err, want)
			}
			if r, refused := errors.AsType[*Refused](err); refused && !errdefs.IsFailedPrecondition(r) {
				t.Errorf("%v is of another class", r)
			}
			text, err := ReadFile(d+"/f/file", Configuration)
			if (err == nil) != (c.want == "") || c.want == "" && string(text) != "text" {
				t.Errorf("ReadFile returned %q, %v", text, err)
			}
		})
	}
}

func TestCheckDir(t *testing.T) {
	d := t.TempDir()
	must(t, os.Chmod(d, 0o777|fs.ModeSticky))
	test.Check(t, Check(d, Configuration))
	test.Says(t, CheckDir(d, Configuration), "mode 1777")
	below := filepath.Join(d, "none", "file")
	if _, err := ReadFile(below, Configuration); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), below) {
		t.Errorf("a file in a directory that is missing: %v", err)
	}
	test.ErrorIs(t, CheckDir(filepath.Join(d, "none"), Configuration), fs.ErrNotExist, "a missing directory")
}

// TestExaminedIsRead: Open opens the file that Check examined, even if it was replaced.
func TestExaminedIsRead(t *testing.T) {
	d := t.TempDir()
	file := filepath.Join(d, "file")
	must(t, os.WriteFile(file, []byte("examined"), 0o600), os.WriteFile(file+"2", []byte("other"), 0o600))
	w := Find(file)
	defer w.Close()
	must(t, w.Check(Configuration), os.Rename(file+"2", file))
	f := test.Value(w.Open())(t)
	defer f.Close()
	test.Equal(t, "read", string(test.Value(io.ReadAll(f))(t)), "examined")
}

// TestNoLeak: Check closes all file descriptors.
func TestNoLeak(t *testing.T) {
	d := t.TempDir()
	must(t, os.Symlink(d+"/a/../b", d+"/link"), os.Mkdir(d+"/a", 0o755), os.WriteFile(d+"/b", nil, 0o600))
	open := func() int {
		fds := test.Value(os.ReadDir("/proc/self/fd"))(t)
		return len(fds)
	}
	before := open()
	for i := range 20 {
		for _, name := range []string{"/link", "/b", "/b/x", "/none", "", "/a/.."} {
			_ = Check(d+name, Configuration)
		}
		if now := open(); now != before {
			t.Fatalf("%d descriptors after round %d, %d before", now, i, before)
		}
	}
}
