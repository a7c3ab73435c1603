package namespaces

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
)

// mount bind-mounts the thread's namespaces, and the user namespace of the process, on files and
// records their paths in ns.
func (r *Request) mount(ns *Paths, pid int) (err error) {
	var undo []func() error
	defer func() {
		if err == nil {
			return
		}
		for _, back := range slices.Backward(undo) {
			err = errors.Join(err, back())
		}
	}()
	const thread = "/proc/thread-self/ns/"
	for _, p := range []struct {
		asked  bool
		file   string
		source string
		path   *string
	}{
		{r.User != nil, userFile, fmt.Sprintf("/proc/%d/ns/", pid), &ns.User},
		{r.Net, netFile, thread, &ns.Net},
		{r.IPC, ipcFile, thread, &ns.IPC},
		{r.UTS, utsFile, thread, &ns.UTS},
	} {
		if !p.asked {
			continue
		}
		path, err := r.createTarget(p.file)
		if err != nil {
			return err
		}
		undo = append(undo, func() error { return release(filepath.Join(r.Dir, p.file)) })
		if err := bind(p.source+p.file, path); err != nil {
			return err
		}
		*p.path = path
	}
	return nil
}

// createTarget creates the file that a namespace is mounted on.
func (r *Request) createTarget(file string) (string, error) {
	path := filepath.Join(r.Dir, file)
	if file == netFile && r.NetPath != "" {
		return r.NetPath, createLinked(path, r.NetPath)
	}
	return path, createFile(path)
}

// createLinked creates the link before the file, because after a crash in between Release finds a
// link without a file, but not a file without a link.
func createLinked(link, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(path, link); err != nil {
		return existing(err)
	}
	if err := createFile(path); err != nil {
		return errors.Join(err, os.Remove(link))
	}
	return nil
}

func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return existing(err)
	}
	return f.Close()
}

func existing(err error) error {
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%w: %w", errdefs.ErrAlreadyExists, err)
	}
	return err
}

func bind(namespace, path string) error {
	if err := unix.Mount(namespace, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the namespace %s at %s: %w", namespace, path, err)
	}
	return nil
}

// Release unmounts and removes the namespaces that Create made in dir, and dir itself if it is then
// empty. Missing files are not an error, so it may be repeated, even after a reboot, when the files
// exist without mounts. A namespace that a process still uses lives on without a name. After
// unix.EBUSY, another call may release the rest.
func Release(dir string) error {
	var errs []error
	for _, file := range []string{netFile, ipcFile, utsFile, userFile} {
		errs = append(errs, release(filepath.Join(dir, file)))
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release namespaces: %w", err)
	}
	return nil
}

// release reverses createTarget and bind of one file. It releases the target of a link first. It
// unmounts lazily, because a CNI plugin or a runtime may have the namespace open.
func release(path string) error {
	target, err := os.Readlink(path)
	if err == nil {
		if err := releaseLinked(target); err != nil {
			return err
		}
	}
	return mountpoint.Remove(path)
}

// releaseLinked releases a file in a shared directory. The file is hidden if another program has
// mounted over that directory.
func releaseLinked(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return mountpoint.Remove(path)
	}
	return mountpoint.RemoveCovered(path)
}

// Lost returns the first namespace that was unmounted, by another program or a reboot, or "".
func (ns *Paths) Lost() string {
	for _, path := range []string{ns.Net, ns.User, ns.IPC, ns.UTS} {
		if path != "" && !Exists(path) {
			return path
		}
	}
	return ""
}

// Exists reports whether path is a mounted namespace. It is false for a missing file and for a file
// that lost its mount, as after a reboot.
func Exists(path string) bool {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && st.Type == unix.NSFS_MAGIC
		}
	}
}
