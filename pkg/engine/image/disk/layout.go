package disk

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/berth-cri/berth/pkg/engine/image/layerproc"
)

// Below the store's root; RootfsDir and TrashDir below Config.WritableRoot.
const (
	SnapshotsDir = "snapshots"
	// RootfsDir has <snapshotter>/<container id>/{fs,work,volumes} for each container.
	RootfsDir = "rootfs"
	// TrashDir has what was in RootfsDir, until it is deleted.
	TrashDir = "trash"
	// UnflushedDir has the marks of layers that may not be on disk.
	UnflushedDir = "unflushed"
	// PreloadedFile says which archives were imported.
	PreloadedFile = "preloaded.json"
	// EmptyDir is a directory without content.
	EmptyDir = "empty"
)

// RootfsPrefix begins the snapshot name of a container's root filesystem, for
// snapshotters that need a snapshot for it; the container id follows.
const RootfsPrefix = "berth-rootfs-"

// LayersFor checks what names a root filesystem.
func (f *Files) LayersFor(containerID, snapshotter string) (*Layers, error) {
	if containerID == "" || containerID != filepath.Base(containerID) || strings.HasPrefix(containerID, ".") {
		return nil, fmt.Errorf("container id %.100q cannot name a root filesystem: %w", containerID, errdefs.ErrInvalidArgument)
	}
	return f.LayersOf(snapshotter)
}

// RootfsPath is the directory of a container's writable layer.
func (f *Files) RootfsPath(snapshotter, containerID string) string {
	return f.WritablePath(RootfsDir, snapshotter, containerID)
}

// VolumesPath is the directory of the volumes that a container has of its own.
func (f *Files) VolumesPath(snapshotter, containerID string) string {
	return filepath.Join(f.RootfsPath(snapshotter, containerID), "volumes")
}

// BlobPath is the file of a blob.
func (f *Files) BlobPath(d digest.Digest) string {
	return f.Path("content", "blobs", d.Algorithm().String(), d.Encoded())
}

// WhereTo needs no mount: whiteouts are what an overlay mount would make of them.
func WhereTo(mounts []mount.Mount) (layerproc.Layer, error) {
	to := layerproc.Layer{}
	if len(mounts) == 1 && mounts[0].Type == "bind" {
		to.Root = mounts[0].Source
	} else if len(mounts) == 1 && mounts[0].Type == "overlay" {
		upper, below := readOverlay(mounts[0].Options)
		to = layerproc.Layer{Root: upper, Overlay: true, Below: below.Lower}
	}
	if to.Root == "" {
		return to, fmt.Errorf("unpack into mounts of an unexpected kind: %w", errdefs.ErrInternal)
	}
	return to, nil
}
