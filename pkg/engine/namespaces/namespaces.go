// Package namespaces creates and keeps the namespaces of a pod sandbox without a process.
//
// A namespace lives as long as it is referenced. Here a bind mount of the kernel's namespace file
// keeps it: without a pause process or its image, and beyond the life of the daemon. A thread
// creates the namespaces, sets them up (hostname, loopback, sysctls), mounts them, and exits.
//
// The mounts are made in the daemon's mount namespace and propagate like the directory's mount.
// This is intended: a CNI daemon that runs in a pod sees the namespace of a new pod only if the
// mount propagates to it.
//
// If a pod has a user namespace, a short-lived process creates the other namespaces inside it: a
// process with several threads cannot enter a user namespace.
package namespaces

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/sysctl"
	"github.com/berth-cri/berth/pkg/engine/thread"
)

// Request selects the namespaces of a sandbox and their initial state.
type Request struct {
	// Dir is the directory of the files user, net, ipc and uts. It is created if it does not exist.
	Dir string
	// NetPath is where the network namespace is mounted instead of Dir/net, which is then a
	// symbolic link to it. It lets a node use /run/netns, the directory that CNI daemons in pods
	// mount to find namespaces.
	NetPath string
	// Net, IPC and UTS request a namespace of that type.
	Net, IPC, UTS bool
	// User requests a user namespace that owns the others.
	User *User
	// Hostname is set in the UTS namespace; empty leaves the host's name.
	Hostname string
	// Sysctls are written in the namespaces, by dotted or slashed name. Each must belong to one of
	// the created namespaces (sysctl.NamespaceOf). Ids in values are those of the user namespace.
	Sysctls map[string]string
}

// Paths are the paths of the mounted namespaces, "" for those not requested.
type Paths struct {
	Net, IPC, UTS string
	User          string `json:",omitempty"`
}

// The file names in a Request's Dir.
const (
	netFile  = "net"
	ipcFile  = "ipc"
	utsFile  = "uts"
	userFile = "user"
)

// Create creates the namespaces that r requests. After an error it leaves no namespace, and no
// r.Dir that it made. Errors of the request itself are errdefs.ErrInvalidArgument, existing files
// errdefs.ErrAlreadyExists. Concurrent calls need different directories.
func Create(ctx context.Context, r Request) (*Paths, error) {
	writes, err := r.sysctls()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("create namespaces: %w", err)
	}
	made, err := makeDir(r.Dir)
	if err != nil {
		return nil, fmt.Errorf("create namespaces: %w", err)
	}
	ns, err := r.create(writes)
	if err != nil {
		if made {
			err = errors.Join(err, os.Remove(r.Dir))
		}
		if errdefs.IsInvalidArgument(err) {
			return nil, err // an error in the pod's request needs no context of the engine
		}
		return nil, fmt.Errorf("create namespaces: %w", err)
	}
	return ns, nil
}

// makeDir creates dir with its parents, and reports whether dir is new: if so, Create removes it
// after an error. The parents stay.
func makeDir(dir string) (bool, error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return false, err
	}
	switch err := os.Mkdir(dir, 0o711); {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrExist):
		return false, nil
	default:
		return false, err
	}
}

func (r *Request) create(writes []write) (*Paths, error) {
	if r.User != nil {
		return r.createInUser(writes)
	}
	var ns Paths
	err := thread.Run(func() error {
		if err := unix.Unshare(r.flags()); err != nil {
			return fmt.Errorf("unshare: %w%s", err, limitHint(err))
		}
		if err := r.setUp(writes); err != nil {
			return err
		}
		return r.mount(&ns, os.Getpid())
	})
	if err != nil {
		return nil, err
	}
	return &ns, nil
}

// SetHostname sets the hostname of a UTS namespace that is mounted at a path.
func SetHostname(path, name string) error {
	return enter(path, unix.CLONE_NEWUTS, func() error { return setHostname(name) })
}

func setHostname(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	return nil
}

func (r *Request) setUp(writes []write) error {
	if r.Hostname != "" {
		if err := setHostname(r.Hostname); err != nil {
			return err
		}
	}
	if r.Net {
		if err := loopbackUp(); err != nil {
			return err
		}
	}
	for _, w := range writes {
		do := w.do
		if r.User != nil && sysctl.NamespaceOf(w.name) == sysctl.IPC {
			do = func() error { return r.User.asRoot(w.do) }
		}
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Request) flags() int {
	flags := 0
	if r.Net {
		flags |= unix.CLONE_NEWNET
	}
	if r.IPC {
		flags |= unix.CLONE_NEWIPC
	}
	if r.UTS {
		flags |= unix.CLONE_NEWUTS
	}
	return flags
}

// limitHint names the sysctls to raise if err is ENOSPC: the node has reached its limit of
// namespaces.
func limitHint(err error) string {
	if errors.Is(err, unix.ENOSPC) {
		return " (the node is at its limit of namespaces: raise the sysctls user.max_{user,net,ipc,uts}_namespaces)"
	}
	return ""
}

// loopbackUp brings up lo in the thread's network namespace, and with it 127.0.0.1 and ::1. One
// netlink message replaces the loopback CNI plugin, which would need a process.
func loopbackUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket: %w", err)
	}
	defer h.Close()
	// The kernel creates lo first, so that its index is always 1.
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}

// Do runs f on a thread in the network namespace at nsPath and returns f's error. Sockets that f
// opens stay in that namespace wherever they are used later; goroutines that f starts do not run in
// it. If nsPath is not a namespace, the error is errdefs.ErrNotFound or the kernel's.
func Do(nsPath string, f func() error) error { return enter(nsPath, unix.CLONE_NEWNET, f) }

func enter(nsPath string, kind int, f func() error) error {
	return thread.Run(func() error {
		if err := setns(nsPath, kind); err != nil {
			return err
		}
		return f()
	})
}

func setns(nsPath string, kind int) error {
	fd, err := openNamespace(nsPath)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, kind); err != nil {
		return fmt.Errorf("enter the namespace %s: %w", nsPath, err)
	}
	return nil
}

// DoEach runs f once in each network namespace, one after another on one thread, and returns the
// errors in their order: those of Do.
func DoEach(nsPaths []string, f func(i int) error) []error {
	errs := make([]error, len(nsPaths))
	_ = thread.Run(func() error {
		for i, nsPath := range nsPaths {
			if errs[i] = setns(nsPath, unix.CLONE_NEWNET); errs[i] == nil {
				errs[i] = f(i)
			}
		}
		return nil
	})
	return errs
}

// openNamespace opens a namespace file that Create mounted, or one in /proc.
func openNamespace(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return -1, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("namespace %s does not exist", path))
	}
	if err != nil {
		return -1, fmt.Errorf("open the namespace %s: %w", path, err)
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil || st.Type != unix.NSFS_MAGIC {
		unix.Close(fd)
		return -1, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s is not a namespace: it lost its mount, as after a reboot", path))
	}
	return fd, nil
}

// write is one write below /proc/sys.
type write struct{ name, key, value string }

// sysctls checks the request's sysctls and orders them by path.
func (r *Request) sysctls() ([]write, error) {
	made := map[sysctl.Namespace]bool{sysctl.Network: r.Net, sysctl.IPC: r.IPC, sysctl.UTS: r.UTS}
	writes := make([]write, 0, len(r.Sysctls))
	for name, value := range r.Sysctls {
		if why := sysctl.Refusal(name, func(ns sysctl.Namespace) bool { return made[ns] }); why != "" {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("sysctl %.100q %s", name, why))
		}
		w := write{name, sysctl.Key(name), value}
		var err error
		if w.value, err = r.User.outside(w.key, value); err != nil {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("sysctl %.100q: %v", name, err))
		}
		writes = append(writes, w)
	}
	slices.SortFunc(writes, func(a, b write) int { return strings.Compare(a.key, b.key) })
	return writes, nil
}

// do sets the value in the namespaces of the calling thread, because the kernel uses those of the
// thread that opens the file.
func (w write) do() error {
	f, err := os.OpenFile("/proc/sys/"+w.key, os.O_WRONLY, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
			"sysctl %.100q does not exist in a namespace of this kernel", w.name))
	case err != nil:
		return fmt.Errorf("sysctl %.100q: %w", w.name, err)
	}
	_, err = f.WriteString(w.value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
			"sysctl %.100q does not accept the value %.100q", w.name, w.value)), err)
	}
	return nil
}
