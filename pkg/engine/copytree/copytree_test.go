package copytree

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// tree creates a directory with every kind of file and attribute that an image may have.
func tree(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "source")
	do := func(err error) {
		t.Helper()
		test.Must(t, err)
	}
	at := func(p string) string { return filepath.Join(root, p) }
	do(os.MkdirAll(at("dir/empty"), 0o755))
	do(os.WriteFile(at("file"), []byte("content"), 0o600))
	do(os.WriteFile(at("dir/program"), bytes.Repeat([]byte("x"), 24<<20), 0o755))
	do(os.Link(at("dir/program"), at("dir/again")))
	do(os.Symlink("/etc/passwd", at("absolute")))
	do(os.Symlink("/etc/passwd", at("dir/owned")))
	do(os.Link(at("absolute"), at("linked")))
	do(unix.Mkfifo(at("fifo"), 0o640))
	do(unix.Mknod(at("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	do(os.Lchown(at("file"), 1000, 1001))
	do(os.Lchown(at("dir/owned"), 12, 13))
	do(os.Lchown(at("dir/program"), 5, 6))
	do(unix.Chmod(at("dir/program"), 0o6755))
	do(unix.Chmod(at("dir"), 0o3770))
	// The kernel's struct vfs_cap_data, revision 2: CAP_NET_RAW, permitted and effective.
	do(unix.Lsetxattr(at("dir/program"), "security.capability", []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	do(unix.Lsetxattr(at("absolute"), "trusted.of-a-link", []byte("seen"), 0))
	do(unix.Lsetxattr(at("dir/empty"), "trusted.empty", nil, 0))
	old := []unix.Timespec{{Sec: 1000000}, {Sec: 1000000, Nsec: 7}}
	for _, p := range []string{"dir/program", "absolute", "dir"} {
		do(unix.UtimesNanoAt(unix.AT_FDCWD, at(p), old, unix.AT_SYMLINK_NOFOLLOW))
	}
	do(unix.Chmod(root, 0o1711))
	do(os.Lchown(root, 70, 71))
	return root
}

// described returns a line for each file of a tree, with all attributes and content.
func described(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	numbers := map[uint64]int{}
	test.Must(t, filepath.Walk(root, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		info, err := stat(path)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		line := fmt.Sprintf("%s mode=%o owner=%d:%d rdev=%d", rel, info.Mode, info.Uid, info.Gid, info.Rdev)
		if info.Mode&unix.S_IFMT != unix.S_IFDIR {
			if numbers[info.Ino] == 0 {
				numbers[info.Ino] = len(numbers) + 1
			}
			line += fmt.Sprintf(" inode=%d of=%d", numbers[info.Ino], info.Nlink)
		}
		line += fmt.Sprintf(" mtime=%d.%d", info.Mtim.Sec, info.Mtim.Nsec)
		switch info.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" bytes=%d %.8q", len(content), content)
		case unix.S_IFLNK:
			to, _ := os.Readlink(path)
			line += " to=" + to
		}
		names, err := sysx.LListxattr(path)
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			value, err := sysx.LGetxattr(path, name)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %s=%x", name, value)
		}
		out = append(out, line)
		return nil
	}))
	return out
}

func TestCopyIsTheSame(t *testing.T) {
	source, target := tree(t), filepath.Join(t.TempDir(), "target")
	test.Must(t, os.Mkdir(target, 0o700))
	test.Must(t, Copy(t.Context(), target, source))
	want, got := described(t, source), described(t, target)
	if !slices.Equal(got, want) {
		t.Errorf("copied\n%q\nwant\n%q", got, want)
	}
}

func TestCopyEndsWithItsContext(t *testing.T) {
	source, target := tree(t), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	test.ErrorIs(t, Copy(ctx, target, source), context.Canceled, "Copy with an ended context")
}

func TestCopyOfNoDirectory(t *testing.T) {
	dir := t.TempDir()
	test.Must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	test.Must(t, os.Symlink("/etc", filepath.Join(dir, "link")))
	for _, name := range []string{"file", "link"} {
		test.ErrorIs(t, Copy(t.Context(), t.TempDir(), filepath.Join(dir, name)), unix.ENOTDIR, "Copy of a %s", name)
	}
}
