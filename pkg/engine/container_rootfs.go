package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"

	"github.com/berth-cri/berth/pkg/engine/idmap"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/handler"
)

// prepareRootfs makes the root filesystem and mounts it in the bundle. A foreign
// shim mounts it itself, so that a VM may take it as it is.
func (b containers) prepareRootfs(ctx context.Context, c *container, img *image.Image) ([]mount.Mount, error) {
	rootfs := filepath.Join(b.containerDir(c.ID()), "rootfs")
	if err := c.sandbox.Spec().Plan.makePodDir(b.containerDir(c.ID())); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if err := os.MkdirAll(rootfs, 0o711); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if c.sandbox.Spec().Plan.User != nil {
		return nil, b.mountMapped(ctx, c, img, rootfs)
	}
	fs, err := b.images.PrepareRootfs(ctx, c.ID(), img, c.Spec().Snapshotter)
	if err != nil {
		return nil, fmt.Errorf("root filesystem: %w", err)
	}
	if c.sandbox.Spec().Definition.Type == handler.Shim {
		return fs.Mounts, nil
	}
	if err := mount.All(fs.Mounts, rootfs); err != nil {
		return nil, fmt.Errorf("mount root filesystem: %w", err)
	}
	return fs.Mounts, nil
}

// mountMapped mounts a root filesystem whose files the pod's users own. This is
// not left to a shim, which would need a process to learn of the mapping.
func (b containers) mountMapped(ctx context.Context, c *container, img *image.Image, rootfs string) error {
	uid, gid := c.sandbox.Spec().Plan.root()
	fs, err := b.images.PrepareRootfs(ctx, c.ID(), img, c.Spec().Snapshotter, image.OwnedBy(int(uid), int(gid)))
	if err != nil {
		return fmt.Errorf("root filesystem: %w", err)
	}
	if err := idmap.Mount(c.sandbox.Status().Namespaces.User, fs.Mounts, rootfs, b.scratchDir(c.ID())); err != nil {
		return fmt.Errorf("mount root filesystem: %w", err)
	}
	return nil
}

// withRootfs calls f with a directory where the root filesystem can be read.
func (b containers) withRootfs(ctx context.Context, c *container, mounts []mount.Mount, f func(dir string) error) error {
	if len(mounts) == 0 || c.sandbox.Spec().Definition.Type != handler.Shim {
		return f(filepath.Join(b.containerDir(c.ID()), "rootfs"))
	}
	return mount.WithReadonlyTempMount(ctx, mounts, f)
}
