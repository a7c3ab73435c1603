package image

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// PrepareRootfs makes the root filesystem of a container, as described at containerfs.Roots. An
// image that was pulled for a snapshotter which fetches layers itself may lack layers: they are
// fetched then, without credentials.
func (s *Store) PrepareRootfs(ctx context.Context, containerID string, img *catalog.Image, snapshotter string, owner *containerfs.Owner) (*containerfs.Rootfs, error) {
	return withLayers(ctx, s, img, snapshotter, func() (*containerfs.Rootfs, error) {
		return s.Roots.PrepareRootfs(ctx, containerID, img, snapshotter, owner)
	})
}

// PrepareVolume returns the read-only mounts of an image, as described at containerfs.Roots, and
// fetches missing layers as PrepareRootfs does.
func (s *Store) PrepareVolume(ctx context.Context, containerID string, img *catalog.Image, snapshotter string) ([]mount.Mount, error) {
	return withLayers(ctx, s, img, snapshotter, func() ([]mount.Mount, error) {
		return s.Roots.PrepareVolume(ctx, containerID, img, snapshotter)
	})
}

// withLayers calls f, and again once missing layers were fetched. If they cannot be fetched without
// credentials, ImageStatus hides the image, so that the kubelet pulls it.
func withLayers[T any](ctx context.Context, s *Store, img *catalog.Image, snapshotter string, f func() (T, error)) (T, error) {
	made, err := f()
	if !errdefs.IsNotFound(err) && !errors.Is(err, containerfs.ErrUnpack) || disk.IsNoSpace(err) || ctx.Err() != nil || !s.lacksLayers(ctx, img) {
		return made, err
	}
	if err := s.fetchAgain(ctx, img, snapshotter); err != nil {
		s.puller.Incomplete.Store(img.ID, true)
		return made, fmt.Errorf("image %s is on this node without the layers that this handler needs, and they cannot be fetched; pull it by berth image pull --handler: %w", img.ID, err)
	}
	return f()
}

// lacksLayers reports whether an image is in the store with a part missing or damaged.
func (s *Store) lacksLayers(ctx context.Context, img *catalog.Image) bool {
	ctx = disk.InNamespace(ctx)
	if _, err := s.catalog.Get(img.ID); err != nil {
		return false
	}
	if !s.puller.ContentWhole(ctx, img, true) {
		return true
	}
	manifest, err := s.catalog.Reader.ReadManifest(ctx, img.Manifest, catalog.CheckManifest)
	if err != nil {
		return false
	}
	for _, layer := range manifest.Layers {
		if _, err := s.files.Content.Info(ctx, layer.Digest); errdefs.IsNotFound(err) {
			return true
		}
	}
	return false
}

func (s *Store) fetchAgain(ctx context.Context, img *catalog.Image, snapshotter string) error {
	known, err := s.catalog.Get(img.ID)
	if err != nil {
		return err
	}
	err = fmt.Errorf("no registry is known for the image: %w", errdefs.ErrNotFound)
	for _, name := range known.RepoDigests {
		log.G(ctx).WithFields(log.Fields{"image": img.ID, "name": name, "snapshotter": snapshotter}).Info("Fetching layers missing for this snapshotter")
		if _, err = s.Pull(ctx, pull.Request{Ref: name, Snapshotter: snapshotter, Platform: catalog.KindOf(img.Platform)}); err == nil {
			return nil
		}
	}
	return err
}

// Look calls f with a directory in which the files of an image can be read while f runs. owner
// names this use; no container may have that id.
func (s *Store) Look(ctx context.Context, owner string, img *catalog.Image, snapshotter string, f func(dir string)) error {
	mounts, err := s.PrepareVolume(ctx, owner, img, snapshotter)
	if err != nil {
		return err
	}
	defer func() {
		if err := s.RemoveRootfs(context.WithoutCancel(ctx), owner, snapshotter); err != nil {
			log.G(ctx).WithError(err).WithField("image", img.ID).Warn("Failed to release layers of an image")
		}
	}()
	return mount.WithReadonlyTempMount(ctx, mounts, func(dir string) error { f(dir); return nil })
}
