// Package mountpoint unmounts and removes what is, or was, mounted on.
//
// One file can be mounted on more than once in a way that no path shows: who
// binds a directory onto itself with all that is mounted in it (iproute2 and
// containerd do so with /run/netns) leaves each of those mounts twice, and
// unmounting reaches the upper one only. As long as the lower one is there the
// kernel removes neither file nor directory: EBUSY.
//
// The kernel asks that of the mount namespace only that the caller is in. What is
// removed from another, in which it is not mounted on, goes, and takes along
// what is mounted on it anywhere. So that is where busy things are removed from.
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

// Unmount detaches whatever can be seen to be mounted at path. Nothing there is
// no error. It is lazy: what is in use is unmounted when it is not any more.
func Unmount(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil, errors.Is(err, unix.EINTR): // there may be another one below
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil
		default:
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// Of returns the mount that path is on: the deepest, and of those the last, which
// covers those before it.
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

// UnmountBelow detaches whatever is mounted in the directory at path, at any depth, and
// not what is mounted at path itself. Nothing there is no error, and in a symbolic link there
// is nothing. It is for directories in which a program that was killed may have mounted what
// is not to be removed with them.
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
	// The last to be mounted goes first.
	for _, m := range slices.Backward(all) {
		err = errors.Join(err, Unmount(m.Mountpoint))
	}
	return err
}

// Remove unmounts and removes a file or an empty directory, whatever is mounted
// on it where. A missing one is no error. unix.EBUSY means that it may be possible
// later.
func Remove(path string) error {
	if err := Unmount(path); err != nil {
		return err
	}
	if err := removed(path, os.Remove); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveAll removes path and all that is below it. What is mounted there must
// have been unmounted before: it is walked into as far as it can be seen.
func RemoveAll(path string) error { return removed(path, os.RemoveAll) }

// removed is EBUSY also if there was no way to find out whether it must be.
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

// leaveAndRemove calls remove with path as it is where nothing is mounted on it or below it:
// the name is one in the working directory of the thread, which must end with the call.
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

// RemoveCovered removes a file that is not to be seen because somebody has mounted
// something over the directory that it is in, or over one above. Only the first
// one that is found below is removed; none is no error.
func RemoveCovered(path string) error {
	return thread.Run(func() error {
		if err := copyMounts(); err != nil {
			return fmt.Errorf("look below the mount over %s: %w", filepath.Dir(path), err)
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

// uncoverOne unmounts what is uppermost at dir, or else at the next directory above
// it. False if nothing is mounted at any but the root.
func uncoverOne(dir string) bool {
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
			return true
		}
	}
	return false
}

// copyMounts moves the thread into a mount namespace that is a copy, in which
// nothing is unmounted for anybody else.
func copyMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mount private: %w", err)
	}
	return nil
}

// leaveMounts moves the thread into a mount namespace that has nothing but its
// root.
func leaveMounts() error {
	if err := copyMounts(); err != nil {
		return err
	}
	table, err := os.Open("/proc/thread-self/mountinfo") // stays readable when /proc is gone
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
			return nil // what is left is in nobody's way, or the removal says so
		}
		before = len(mounts)
		for _, m := range mounts {
			// One takes along all that is below it, so most are gone by their turn.
			_ = unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}
