// Package copytree copies directories with owners, modes, times, extended attributes, links and
// devices.
//
// Symbolic links are copied and never followed. Neither directory may change during the copy.
package copytree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/continuity/sysx"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/wanted"
)

// labelName is not copied, since it depends on the file's location.
const labelName = "security.selinux"

// Copy copies the content and the attributes of the directory source to the directory target, which
// must exist and be empty. If ctx ends, it stops and leaves the copied files.
func Copy(ctx context.Context, target, source string) error {
	info, err := stat(source)
	if err != nil {
		return err
	}
	if info.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &fs.PathError{Op: "copy", Path: source, Err: unix.ENOTDIR}
	}
	c := &copying{ctx: ctx, linked: map[inode]string{}}
	if err := c.content(target, source); err != nil {
		return err
	}
	return attributes(target, source, info)
}

type inode struct{ dev, ino uint64 }

type copying struct {
	ctx context.Context
	// linked maps files with several names to their copies.
	linked map[inode]string
}

func stat(path string) (*unix.Stat_t, error) {
	var info unix.Stat_t
	if err := unix.Lstat(path, &info); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return &info, nil
}

func (c *copying) content(target, source string) error {
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := c.entry(filepath.Join(target, e.Name()), filepath.Join(source, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) entry(target, source string) error {
	info, err := stat(source)
	if err != nil {
		return err
	}
	kind := info.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && info.Nlink > 1 {
		this := inode{info.Dev, info.Ino}
		if first, there := c.linked[this]; there {
			return os.Link(first, target)
		}
		c.linked[this] = target
	}
	switch kind {
	case unix.S_IFDIR:
		if err = os.Mkdir(target, 0o700); err == nil {
			err = c.content(target, source)
		}
	case unix.S_IFREG:
		err = c.file(target, source)
	case unix.S_IFLNK:
		var to string
		if to, err = os.Readlink(source); err == nil {
			err = os.Symlink(to, target)
		}
	default:
		if err = unix.Mknod(target, kind|0o600, int(info.Rdev)); err != nil {
			err = &fs.PathError{Op: "mknod", Path: target, Err: err}
		}
	}
	if err != nil {
		return err
	}
	return attributes(target, source, info)
}

func (c *copying) file(target, source string) error {
	from, err := os.OpenFile(source, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(wanted.Copy(c.ctx, to, from), to.Close())
}

// attributes copies the attributes of source to target. The order matters: a change of the owner
// clears capabilities and the set-id bits.
func attributes(target, source string, info *unix.Stat_t) error {
	if err := os.Lchown(target, int(info.Uid), int(info.Gid)); err != nil {
		return err
	}
	isLink := info.Mode&unix.S_IFMT == unix.S_IFLNK
	if !isLink { // a link has no mode
		if err := unix.Chmod(target, info.Mode&0o7777); err != nil {
			return &fs.PathError{Op: "chmod", Path: target, Err: err}
		}
	}
	if err := extended(target, source); err != nil {
		return err
	}
	times := []unix.Timespec{info.Atim, info.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, target, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "utimensat", Path: target, Err: err}
	}
	return nil
}

// extended copies extended attributes. It omits those that the target's file system does not
// support.
func extended(target, source string) error {
	names, err := sysx.LListxattr(source)
	switch {
	case errors.Is(err, unix.ENOTSUP):
		return nil
	case err != nil:
		return &fs.PathError{Op: "llistxattr", Path: source, Err: err}
	}
	for _, name := range names {
		if name == labelName {
			continue
		}
		value, err := sysx.LGetxattr(source, name)
		switch {
		case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
			continue
		case err != nil:
			return &fs.PathError{Op: "lgetxattr " + name, Path: source, Err: err}
		}
		if err := unix.Lsetxattr(target, name, value, 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return &fs.PathError{Op: "lsetxattr " + name, Path: target, Err: err}
		}
	}
	return nil
}
