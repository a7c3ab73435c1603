package pin

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// openNamespace opens a namespace file that Create mounted, or one in /proc.
func openNamespace(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return -1, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("network namespace %s does not exist", path))
	}
	if err != nil {
		return -1, fmt.Errorf("open the network namespace %s: %w", path, err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.NSFS_MAGIC {
		unix.Close(fd)
		return -1, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s is not a network namespace: it lost its mount, as after a reboot", path))
	}
	return fd, nil
}
