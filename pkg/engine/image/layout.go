package image

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
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
