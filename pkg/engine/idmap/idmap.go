// Package idmap mounts files so that a pod's user namespace sees them with their owners on disk:
// user 0 of an image is user 0 of the pod, whatever host ids the pod got. Nothing on disk changes.
//
// It uses a mounted user namespace, so that no process is needed to define the mapping. A
// filesystem needs FS_ALLOW_IDMAP: most local ones got it in Linux 5.12 to 6.3, most network
// filesystems do not have it. A mount is either wholly mapped or not at all.
package idmap

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
)

// Mount mounts ms, one overlay or one bind mount, at target, which must exist, with the id mapping
// of the user namespace that is mounted at userns. scratch is a directory that must not exist;
// Mount creates and removes it; after a crash, Forget removes it. If the filesystem or the kernel
// cannot map ids, Mount returns errdefs.ErrFailedPrecondition.
func Mount(userns string, ms []mount.Mount, target, scratch string) error {
	if len(ms) != 1 {
		return fmt.Errorf("map the IDs of %d mounts at once: %w", len(ms), errdefs.ErrNotImplemented)
	}
	ns, err := os.Open(userns)
	if err != nil {
		return fmt.Errorf("open the user namespace: %w", err)
	}
	defer ns.Close()
	switch m := ms[0]; m.Type {
	case "overlay":
		return mountOverlay(ns, m, target, scratch)
	case "bind":
		return clone(ns, m.Source, target, slices.Contains(m.Options, "ro"))
	default:
		return fmt.Errorf("map the IDs of a mount of type %q: %w", m.Type, errdefs.ErrNotImplemented)
	}
}

// Bind mounts the file or directory source at target, which must be of the same kind, with the id
// mapping of the user namespace that is mounted at userns. Mounts below source are included but not
// mapped; runtimes do the same. Later mounts below source propagate to target, but not back. Errors
// are those of Mount.
func Bind(userns, source, target string) error {
	ns, err := os.Open(userns)
	if err != nil {
		return fmt.Errorf("open the user namespace: %w", err)
	}
	defer ns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return mapError(source, err)
	}
	defer func() { _ = unix.Close(tree) }() // this unmounts the clone unless it was moved
	following := unix.MountAttr{Propagation: unix.MS_SLAVE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &following); err != nil {
		return mapError(source, err)
	}
	mapped := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &mapped); err != nil {
		return mapError(source, err)
	}
	return mapError(source, unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// Forget removes the mount of an interrupted Mount at scratch.
func Forget(scratch string) error { return mountpoint.Remove(scratch) }

// mountOverlay mounts an overlay of mapped layers, because the kernel cannot map an overlay itself.
// The overlay's own mounts of the layers survive the removal of scratch.
func mountOverlay(ns *os.File, m mount.Mount, target, scratch string) (err error) {
	const lowerdir = "lowerdir="
	i := slices.IndexFunc(m.Options, func(o string) bool { return strings.HasPrefix(o, lowerdir) })
	if i < 0 {
		return fmt.Errorf("an overlay without %s: %w", lowerdir, errdefs.ErrInvalidArgument)
	}
	layers := strings.Split(strings.TrimPrefix(m.Options[i], lowerdir), ":")
	above := ancestor(layers)
	if above == "/" {
		return fmt.Errorf("the layers %s have no directory in common: %w", m.Options[i], errdefs.ErrNotImplemented)
	}
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, Forget(scratch)) }()
	if err := clone(ns, above, scratch, true); err != nil {
		return err
	}
	for j, layer := range layers {
		layers[j] = filepath.Join(scratch, strings.TrimPrefix(layer, above))
	}
	options := slices.Clone(m.Options)
	options[i] = lowerdir + strings.Join(layers, ":")
	m.Options = options
	if err := m.Mount(target); err != nil {
		return fmt.Errorf("mount an overlay of mapped layers: %w", err)
	}
	return nil
}

// ancestor returns the deepest directory that contains all paths.
func ancestor(paths []string) string {
	above := path.Dir(path.Clean(paths[0]))
	for _, p := range paths[1:] {
		for above != "/" && !strings.HasPrefix(path.Clean(p), above+"/") {
			above = path.Dir(above)
		}
	}
	return above
}

func clone(ns *os.File, source, target string, readonly bool) error {
	var attributes uint64
	if readonly {
		attributes = unix.MOUNT_ATTR_RDONLY
	}
	return mapError(source, mount.IDMapMountWithAttrs(source, target, int(ns.Fd()), attributes, 0))
}

func mapError(source string, err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("the filesystem of %s, or the kernel, cannot map IDs: %w: %w", source, err, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return fmt.Errorf("map the IDs of %s: %w", source, err)
	}
	return nil
}
