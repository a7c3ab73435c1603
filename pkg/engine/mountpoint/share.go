package mountpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Share makes dir, which it creates if necessary, a shared mount of itself. Containers that mount
// dir then see later mounts in it, even if another process mounts dir onto itself again. iproute2,
// CRI-O and CNI plugins do the same with /run/netns, all under iproute2's lock.
//
// Existing mounts in dir stay, without a hidden second copy, which would prevent their owner from
// removing them.
func Share(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if shared, err := isMount(dir); err != nil || shared {
		return err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer lock.Close() // which also unlocks it
	for {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err == nil {
			break
		} else if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", dir, err)
		}
	}
	if shared, err := isMount(dir); err != nil || shared {
		return err // another process was first
	}
	before, err := openMounts(dir)
	defer func() {
		for _, fd := range before {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s onto itself: %w", dir, err)
	}
	return errors.Join(uncover(dir, before), setShared(dir))
}

func setShared(dir string) error {
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the mount %s: %w", dir, err)
	}
	return nil
}

// isMount reports whether dir is a mount point. The process that mounted it also shared it.
func isMount(dir string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_TYPE, &st); err != nil {
		return false, err
	}
	if st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	return mountinfo.Mounted(dir) // before Linux 5.8
}

func openMounts(dir string) ([]int, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, m := range mounts {
		if filepath.Dir(m.Mountpoint) != dir {
			continue // it belongs to the mount that contains it
		}
		fd, err := unix.Open(m.Mountpoint, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fds, fmt.Errorf("open %s: %w", m.Mountpoint, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// uncover unmounts the covered mounts of which dir has copies. If dir propagates to the mount that
// it covers, an unmount in dir also unmounts the covered mount, so nothing is needed.
func uncover(dir string, covered []int) error {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(dir))
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if m.Optional != "" { // "shared:1": dir propagates to the mount below
			return nil
		}
	}
	var errs []error
	for _, fd := range covered {
		if err := unix.Unmount(fmt.Sprintf("/proc/self/fd/%d", fd), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount below %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}
