package namespaces

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/thread"
)

// loopbackUp brings up lo in the thread's network namespace, and with it
// 127.0.0.1 and ::1: one message, where the loopback CNI plugin is a process.
func loopbackUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer h.Close()
	// The kernel makes lo first, so that its index is always 1.
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}

// Do runs f on a thread in the network namespace at nsPath and returns what f
// returns. Sockets that f opens stay in that namespace wherever they are used
// later; goroutines that f starts do not run in it. A path that is no namespace
// is errdefs.ErrNotFound or the kernel's error.
func Do(nsPath string, f func() error) error {
	fd, err := openNamespace(nsPath)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return thread.Run(func() error {
		if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace %s: %w", nsPath, err)
		}
		return f()
	})
}

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
