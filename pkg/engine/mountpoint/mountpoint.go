// Package mountpoint unmounts and removes files and directories that are, or were, mount points.
//
// One file can have mounts that no path shows: if a process binds a directory onto itself with all
// mounts in it (iproute2 and containerd do so with /run/netns), it duplicates each of those mounts,
// and an unmount only reaches the upper one. While the lower one exists, the kernel refuses to
// remove the file or directory with EBUSY.
//
// The kernel only checks the mount namespace of the caller. A file can be removed from a mount
// namespace in which it is not a mount point, which also removes its mounts in all others.
// Therefore busy files are removed from such a namespace.
package mountpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/thread"
)

// Unmount detaches all visible mounts at path. A path without a mount is not an error. The unmount
// is lazy: a mount in use disappears after its last use.
func Unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil, errors.Is(err, unix.EINTR): // there may be another mount under it
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		default:
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// Of returns the mount of path: the deepest, and of several in one place the last, uppermost one.
func Of(path string) (*mountinfo.Info, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	if len(mounts) == 0 {
		return nil, fmt.Errorf("%s is not on a mount visible to this process: %w", path, errdefs.ErrFailedPrecondition)
	}
	slices.SortStableFunc(mounts, func(a, b *mountinfo.Info) int { return len(a.Mountpoint) - len(b.Mountpoint) })
	return mounts[len(mounts)-1], nil
}

// UnmountBelow detaches all mounts in the directory at path, at any depth, but not a mount at path
// itself. A missing directory is not an error, and a symbolic link contains no mounts. Use it for
// directories in which a killed program may have left mounts: the content of a mount must not be
// removed with the directory.
func UnmountBelow(path string) error {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	below := filepath.Join(parent, filepath.Base(path)) + "/"
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, below), false
	})
	if err != nil {
		return fmt.Errorf("find the mounts below %s: %w", path, err)
	}
	// The last mount is unmounted first.
	for _, m := range slices.Backward(all) {
		err = errors.Join(err, Unmount(m.Mountpoint))
	}
	return err
}

// Remove unmounts and removes a file or an empty directory, even if it is a mount point in another
// mount namespace. A missing file is not an error. After unix.EBUSY, a retry may succeed.
func Remove(path string) error {
	if err := Unmount(path); err != nil {
		return err
	}
	if err := removed(path, os.Remove); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveAll removes path and everything below it. Unmount visible mounts there first, because their
// content would be removed too.
func RemoveAll(path string) error { return removed(path, os.RemoveAll) }

// removed removes busy files from another mount namespace. If that fails, the error is still EBUSY.
func removed(path string, remove func(string) error) error {
	busy := remove(path)
	if !errors.Is(busy, unix.EBUSY) {
		return busy
	}
	if err := thread.Run(func() error { return leaveAndRemove(path, remove) }); err != nil {
		return fmt.Errorf("%w: %w", busy, err)
	}
	return nil
}

// leaveAndRemove calls remove in a mount namespace without mounts on path or below it. The name is
// relative to the working directory of the thread. The thread must exit afterwards.
func leaveAndRemove(path string, remove func(name string) error) error {
	dir, err := unix.OpenTree(unix.AT_FDCWD, filepath.Dir(path), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone the mount of %s: %w", filepath.Dir(path), err)
	}
	defer unix.Close(dir)
	if err := leaveMounts(); err != nil {
		return fmt.Errorf("remove %s from a mount namespace without mounts: %w", path, err)
	}
	if err := unix.Fchdir(dir); err != nil {
		return err
	}
	if err := remove(filepath.Base(path)); err != nil {
		return fmt.Errorf("in %s: %w", filepath.Dir(path), err)
	}
	return nil
}

// RemoveCovered removes a file that is hidden by a mount over its directory, or over a directory
// above. Of several hidden files it removes only the uppermost. A missing file is not an error.
func RemoveCovered(path string) error {
	return thread.Run(func() error {
		if err := copyMounts(); err != nil {
			return fmt.Errorf("search below the mount over %s: %w", filepath.Dir(path), err)
		}
		for !exists(path) {
			if !uncoverOne(filepath.Dir(path)) {
				return nil
			}
		}
		return leaveAndRemove(path, os.Remove)
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// uncoverOne unmounts the uppermost mount at dir, or else at the next directory above. It returns
// false if only the mount at the root is left.
func uncoverOne(dir string) bool {
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
			return true
		}
	}
	return false
}

// copyMounts moves the thread into a copy of the mount namespace, in which an unmount affects no
// other process.
func copyMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mount private: %w", err)
	}
	return nil
}

// leaveMounts moves the thread into a mount namespace with only its root.
func leaveMounts() error {
	if err := copyMounts(); err != nil {
		return err
	}
	table, err := os.Open("/proc/thread-self/mountinfo") // stays readable when /proc is unmounted
	if err != nil {
		return err
	}
	defer table.Close()
	for before := 0; ; {
		if _, err := table.Seek(0, 0); err != nil {
			return err
		}
		mounts, err := mountinfo.GetMountsFromReader(table, nil)
		if err != nil {
			return err
		}
		mounts = slices.DeleteFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == "/" })
		if len(mounts) == 0 || len(mounts) == before {
			return nil // the rest does not matter, or the removal fails
		}
		before = len(mounts)
		for _, m := range mounts {
			// An unmount includes all mounts below, so most fail here.
			_ = unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}
