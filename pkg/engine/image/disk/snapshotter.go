package disk

import (
	"context"
	"fmt"
	"maps"
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

type snapshotterKind struct {
	open func(root string) (snapshots.Snapshotter, error)
	// Layered says that the mounts of a view are directories that an overlay
	// mount of our own may have as lower directories.
	Layered bool
	// Remote says that layers may be there without having been fetched.
	Remote bool
	// Rebase says that a layer can be unpacked before those below it.
	Rebase bool
	// Seal brings the directory of an unpacked layer into the form that is kept, if
	// that is another. It is done before the commit, which locks the metadata.
	Seal func(ctx context.Context, dir string) error
}

var snapshotterKinds = map[string]snapshotterKind{
	Overlayfs: {
		open: func(root string) (snapshots.Snapshotter, error) {
			return overlay.NewSnapshotter(root, overlay.AsynchronousRemove)
		},
		Layered: true, Rebase: true,
	},
	Erofs:  {open: openErofs, Layered: true, Rebase: true, Seal: sealErofs},
	Native: {open: native.NewSnapshotter},
}

// SnapshotterNames returns the names that a handler's snapshotter may have, if those of
// other programs are these.
func SnapshotterNames(others map[string]string) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(snapshotterKinds)), maps.Keys(others))
	slices.Sort(names)
	return names
}

// UnknownSnapshotter is errdefs.ErrInvalidArgument with the names that are known.
func UnknownSnapshotter(name string, known []string) error {
	return fmt.Errorf("unknown snapshotter %q; use one of %s, or add [snapshotters.%s] and restart berth: %w",
		name, strings.Join(known, ", "), name, errdefs.ErrInvalidArgument)
}
