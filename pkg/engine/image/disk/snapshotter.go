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

// The snapshotters of a Store.
const (
	// Overlayfs keeps each layer in a directory and stacks them by overlay mounts.
	Overlayfs = "overlayfs"
	// Erofs keeps each layer in a file with a read-only filesystem, which the kernel verifies on
	// reads where it can, and stacks them by overlay mounts.
	Erofs = "erofs"
	// Native copies every layer. It is for filesystems on which overlayfs does not work.
	Native = "native"
)

type snapshotterKind struct {
	open func(root string) (snapshots.Snapshotter, error)
	// Layered is set if the mounts of a view are directories that berth's own overlay mounts can
	// have as lower directories.
	Layered bool
	// Remote is set if layers may exist without having been fetched.
	Remote bool
	// Rebase is set if a layer can be unpacked before those below it.
	Rebase bool
	// Seal converts the directory of an unpacked layer to its stored form, if that form differs. It
	// runs before the commit, which locks the metadata.
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

// SnapshotterNames returns the names that a handler's snapshotter may have, given the proxy
// snapshotters.
func SnapshotterNames(others map[string]string) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(snapshotterKinds)), maps.Keys(others))
	slices.Sort(names)
	return names
}

// UnknownSnapshotter returns an errdefs.ErrInvalidArgument with the known names.
func UnknownSnapshotter(name string, known []string) error {
	return fmt.Errorf("unknown snapshotter %q; use one of %s, or add [snapshotters.%s] and restart berth: %w",
		name, strings.Join(known, ", "), name, errdefs.ErrInvalidArgument)
}
