package image

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
)

// The snapshotters that a Store has.
const (
	// Overlayfs keeps each layer in a directory and stacks them by overlay mounts.
	Overlayfs = "overlayfs"
	// Erofs keeps each layer in a file with a read-only filesystem, which the kernel
	// checks as it reads where it can, and stacks them by overlay mounts.
	Erofs = "erofs"
	// Native copies every layer; for filesystems that overlayfs cannot use.
	Native = "native"
)

// snapshotterKind is how the Store uses a snapshotter.
type snapshotterKind struct {
	open func(root string) (snapshots.Snapshotter, error)
	// layered says that the mounts of a view are directories that an overlay
	// mount of our own may have as lower directories.
	layered bool
	// rebase says that a layer can be unpacked before those below it.
	rebase bool
}

var snapshotterKinds = map[string]snapshotterKind{
	Overlayfs: {
		open: func(root string) (snapshots.Snapshotter, error) {
			return overlay.NewSnapshotter(root, overlay.AsynchronousRemove)
		},
		layered: true, rebase: true,
	},
	Erofs:  {open: openErofs, layered: true, rebase: true},
	Native: {open: native.NewSnapshotter},
}

// Snapshotters returns the names that Config.DefaultSnapshotter and a handler's
// snapshotter may have.
func Snapshotters() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range snapshotterKinds {
			if !yield(name) {
				return
			}
		}
	})
}

func unknownSnapshotter(name string) error {
	return fmt.Errorf("unknown snapshotter %q; use one of %s: %w", name, strings.Join(Snapshotters(), ", "), errdefs.ErrInvalidArgument)
}
