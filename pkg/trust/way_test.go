package trust

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const stranger = 12345

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("giving files to another user needs root")
	}
}

// TestCheck has files and links as they are on disks; dir/f/file is asked for.
func TestCheck(t *testing.T) {
	needRoot(t)
	for name, c := range map[string]struct {
		make func(d string) error
		want string
	}{
		"fine":    {func(string) error { return nil }, ""},
		"missing": {func(d string) error { return os.Remove(d + "/f/file") }, "no such file"},
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
		"the directory of a link to a link": {func(d string) error {
			return errors.Join(os.Mkdir(d+"/g", 0o755), os.Mkdir(d+"/h", 0o755), os.Rename(d+"/f/file", d+"/h/file"),
				os.Symlink("../h/file", d+"/g/link"), os.Symlink("../g/link", d+"/f/file"), os.Chmod(d+"/g", 0o777))
		}, "chmod o-w $D/g"},
		"a directory that a link goes up from": {func(d string) error {
			return errors.Join(os.Mkdir(d+"/g", 0o755), os.Mkdir(d+"/g/h", 0o755), os.Rename(d+"/f/file", d+"/g/file"),
				os.Symlink(d+"/g/h/../file", d+"/f/file"), os.Chown(d+"/g/h", stranger, 0))
		}, "chown root $D/g/h"},
		"another's link in a sticky directory": {func(d string) error {
			return errors.Join(os.Chmod(d+"/f", 0o777|fs.ModeSticky), os.Rename(d+"/f/file", d+"/f/real"),
				os.Symlink("real", d+"/f/file"), os.Lchown(d+"/f/file", stranger, 0))
		}, "chown -h root $D/f/file"},
		"access control list": {func(d string) error {
			// Version 2; owner, user 12345, group, mask and others, each tag, rights and id.
			acl := binary.LittleEndian.AppendUint32(nil, 2)
			for _, e := range [][3]uint32{{0x01, 6, ^uint32(0)}, {0x02, 6, stranger}, {0x04, 4, ^uint32(0)}, {0x10, 6, ^uint32(0)}, {0x20, 4, ^uint32(0)}} {
				acl = binary.LittleEndian.AppendUint16(acl, uint16(e[0]))
				acl = binary.LittleEndian.AppendUint16(acl, uint16(e[1]))
				acl = binary.LittleEndian.AppendUint32(acl, e[2])
			}
			err := unix.Setxattr(d+"/f/file", "system.posix_acl_access", acl, 0)
			if errors.Is(err, unix.EOPNOTSUPP) {
				return errSkip
			}
			return err
		}, "setfacl -b $D/f/file"},
	} {
		t.Run(name, func(t *testing.T) {
			d := t.TempDir()
			must(t, os.Mkdir(d+"/f", 0o755), os.WriteFile(d+"/f/file", []byte("text"), 0o644))
			if err := c.make(d); errors.Is(err, errSkip) {
				t.Skip("the file system of the temporary directory has no access control lists")
			} else {
				must(t, err)
			}
			err := Check(d+"/f/file", Configuration)
			if want := strings.ReplaceAll(c.want, "$D", d); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("Check says %v, want %q", err, want)
			}
			if r, refused := errors.AsType[*Refused](err); refused && !errdefs.IsFailedPrecondition(r) {
				t.Errorf("%v is of another class", r)
			}
			text, err := ReadFile(d+"/f/file", Configuration)
			if (err == nil) != (c.want == "") || c.want == "" && string(text) != "text" {
				t.Errorf("ReadFile says %q, %v", text, err)
			}
		})
	}
}

var errSkip = errors.New("skip")

func TestCheckDir(t *testing.T) {
	d := t.TempDir()
	must(t, os.Chmod(d, 0o777|fs.ModeSticky))
	if err := Check(d, Configuration); err != nil {
		t.Error(err)
	}
	if err := CheckDir(d, Configuration); err == nil || !strings.Contains(err.Error(), "mode 1777") {
		t.Errorf("a directory to which everybody adds: %v", err)
	}
	below := filepath.Join(d, "none", "file")
	if _, err := ReadFile(below, Configuration); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), below) {
		t.Errorf("a file in a directory that is missing: %v", err)
	}
	if err := CheckDir(filepath.Join(d, "none"), Configuration); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
}

// TestExaminedIsRead replaces a file after it was examined.
func TestExaminedIsRead(t *testing.T) {
	d := t.TempDir()
	file := filepath.Join(d, "file")
	must(t, os.WriteFile(file, []byte("examined"), 0o600), os.WriteFile(file+"2", []byte("other"), 0o600))
	w := Find(file)
	defer w.Close()
	must(t, w.Judge(Configuration), os.Rename(file+"2", file))
	f, err := w.Open()
	must(t, err)
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "examined" {
		t.Errorf("read %q, %v", text, err)
	}
}

// TestVolume has a ConfigMap as the kubelet mounts it.
func TestVolume(t *testing.T) {
	needRoot(t)
	for name, c := range map[string]struct {
		mode     fs.FileMode
		flags    uintptr
		data     string
		accepted bool
	}{
		"ConfigMap":         {0o777, unix.MS_RDONLY, "..data", true},
		"Secret":            {0o777 | fs.ModeSticky, unix.MS_RDONLY, "..data", true},
		"writable emptyDir": {0o777, 0, "..data", false},
		"another read-only": {0o777, unix.MS_RDONLY, "data", false},
	} {
		t.Run(name, func(t *testing.T) {
			d := t.TempDir()
			must(t, os.Mkdir(d+"/v", 0o755), os.Mkdir(d+"/mnt", 0o755), os.Mkdir(d+"/v/..1", 0o755), os.WriteFile(d+"/v/..1/config.toml", nil, 0o644),
				os.Symlink("..1", d+"/v/"+c.data), os.Symlink(c.data+"/config.toml", d+"/v/config.toml"), os.Chmod(d+"/v", c.mode))
			if err := unix.Mount(d+"/v", d+"/mnt", "", unix.MS_BIND, ""); err != nil {
				t.Skip("mounting needs more rights: ", err)
			}
			t.Cleanup(func() { must(t, unix.Unmount(d+"/mnt", 0)) })
			must(t, unix.Mount("", d+"/mnt", "", unix.MS_BIND|unix.MS_REMOUNT|c.flags, ""))
			if err := CheckDir(d+"/mnt", Configuration); (err == nil) != c.accepted {
				t.Errorf("the volume: %v", err)
			}
			sticky := c.mode&fs.ModeSticky != 0
			if err := Check(d+"/mnt/config.toml", Configuration); (err == nil) != (c.accepted || sticky) {
				t.Errorf("a file of it: %v", err)
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	d := b.TempDir()
	file := filepath.Join(d, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := Check(file, Configuration); err != nil {
			b.Fatal(err)
		}
	}
}

// TestNoLeak finds ways that leave nothing open.
func TestNoLeak(t *testing.T) {
	d := t.TempDir()
	must(t, os.Symlink(d+"/a/../b", d+"/link"), os.Mkdir(d+"/a", 0o755), os.WriteFile(d+"/b", nil, 0o600))
	open := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		must(t, err)
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
