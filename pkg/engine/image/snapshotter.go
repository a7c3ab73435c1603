package image

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
	// layered says that the mounts of a view are directories that an overlay
	// mount of our own may have as lower directories.
	layered bool
	// remote says that layers may be there without having been fetched.
	remote bool
	// rebase says that a layer can be unpacked before those below it.
	rebase bool
	// seal brings the directory of an unpacked layer into the form that is kept, if
	// that is another. It is done before the commit, which locks the metadata.
	seal func(ctx context.Context, dir string) error
}

var snapshotterKinds = map[string]snapshotterKind{
	Overlayfs: {
		open: func(root string) (snapshots.Snapshotter, error) {
			return overlay.NewSnapshotter(root, overlay.AsynchronousRemove)
		},
		layered: true, rebase: true,
	},
	Erofs:  {open: openErofs, layered: true, rebase: true, seal: sealErofs},
	Native: {open: native.NewSnapshotter},
}

// snapshotterNames returns the names that a handler's snapshotter may have, if those of
// other programs are these.
func snapshotterNames(others map[string]string) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(snapshotterKinds)), maps.Keys(others))
	slices.Sort(names)
	return names
}

func unknownSnapshotter(name string, known []string) error {
	return fmt.Errorf("unknown snapshotter %q; use one of %s, or add [snapshotters.%s] and restart berth: %w",
		name, strings.Join(known, ", "), name, errdefs.ErrInvalidArgument)
}
