package image

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/image/layerproc"
)

// Below the store's root; rootfsDir and trashDir below Config.WritableRoot.
const (
	snapshotsDir = "snapshots"
	// rootfsDir has <snapshotter>/<container id>/{fs,work,volumes} for each container.
	rootfsDir = "rootfs"
	// trashDir has what was in rootfsDir, until it is deleted.
	trashDir = "trash"
	// unflushedDir has the marks of layers that may not be on disk.
	unflushedDir = "unflushed"
	// preloadedFile says which archives were imported.
	preloadedFile = "preloaded.json"
	// emptyDir is a directory without content.
	emptyDir = "empty"
)

// rootfsPrefix begins the snapshot name of a container's root filesystem, for
// snapshotters that need a snapshot for it; the container id follows.
const rootfsPrefix = "berth-rootfs-"

// layersFor checks what names a root filesystem.
func (f *files) layersFor(containerID, snapshotter string) (*layers, string, error) {
	if containerID == "" || containerID != filepath.Base(containerID) || strings.HasPrefix(containerID, ".") {
		return nil, "", fmt.Errorf("container id %.100q cannot name a root filesystem: %w", containerID, errdefs.ErrInvalidArgument)
	}
	return f.layersOf(snapshotter)
}

func (f *files) rootfsPath(snapshotter, containerID string) string {
	return f.writablePath(rootfsDir, snapshotter, containerID)
}

func (f *files) volumesPath(snapshotter, containerID string) string {
	return filepath.Join(f.rootfsPath(snapshotter, containerID), "volumes")
}

// whereTo needs no mount: whiteouts are what an overlay mount would make of them.
func whereTo(mounts []mount.Mount) (layerproc.Layer, error) {
	if len(mounts) == 1 && mounts[0].Type == "bind" {
		return layerproc.Layer{Root: mounts[0].Source}, nil
	}
	to := layerproc.Layer{Overlay: true}
	if len(mounts) == 1 && mounts[0].Type == "overlay" {
		for _, o := range mounts[0].Options {
			switch key, value, _ := strings.Cut(o, "="); key {
			case "upperdir":
				to.Root = value
			case "lowerdir":
				to.Below = strings.Split(value, ":")
			}
		}
	}
	if to.Root == "" {
		return to, fmt.Errorf("unpack into mounts of an unexpected kind: %w", errdefs.ErrInternal)
	}
	return to, nil
}
