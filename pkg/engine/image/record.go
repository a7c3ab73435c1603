package image

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
)

// record makes img known under names: on disk first, with the end of the lease
// that held it, in one transaction; then in memory.
func (s *Store) record(ctx context.Context, img *Image, target imagespec.Descriptor, lease leases.Lease, names []string) (*Image, error) {
	s.records.Lock()
	defer s.records.Unlock()
	err := s.db.Update(func(tx *bolt.Tx) error {
		tctx := boltutil.WithTransaction(ctx, tx)
		for _, name := range names {
			if err := s.recordName(tctx, name, target); err != nil {
				return err
			}
		}
		return s.leases.Delete(tctx, lease)
	})
	if err != nil {
		return nil, fmt.Errorf("record image %s: %w", img.ID, err)
	}
	return s.index.put(img, target.Digest, names...), nil
}

func (s *Store) recordName(ctx context.Context, name string, target imagespec.Descriptor) error {
	rec := images.Image{Name: name, Target: target}
	_, err := s.images.Update(ctx, rec)
	if errdefs.IsNotFound(err) {
		_, err = s.images.Create(ctx, rec)
	}
	return err
}

// Remove drops the image that ref finds, with all its names, and frees what
// nothing else needs; layers that a container runs on stay until it is gone. An
// image that is not there is no error. When it returns the image is in no list;
// the space is free too, unless ctx ended first.
func (s *Store) Remove(ctx context.Context, ref string) error {
	ctx = s.context(ctx)
	img, err := s.forget(ctx, ref)
	if err != nil || img == nil {
		return err
	}
	log.G(ctx).WithFields(log.Fields{"image": img.ID, "tags": img.RepoTags}).Info("Image removed")
	select {
	case <-s.collector.request():
	case <-ctx.Done():
	}
	return nil
}

// forget removes the records of an image. Nil when there was none.
func (s *Store) forget(ctx context.Context, ref string) (*Image, error) {
	s.records.Lock()
	defer s.records.Unlock()
	img, err := s.index.get(ref)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		tctx := boltutil.WithTransaction(ctx, tx)
		for _, name := range s.index.nameList(img.ID) {
			if err := s.images.Delete(tctx, name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("remove image %s: %w", img.ID, err)
	}
	s.index.drop(img.ID)
	return img, nil
}

// load reads an image, without names, from its content. The limits for what is
// pulled do not count here, only those that bound the memory of the daemon.
func (s *Store) load(ctx context.Context, target imagespec.Descriptor) (*Image, error) {
	desc, err := s.platformManifest(ctx, target)
	if err != nil {
		return nil, err
	}
	manifest, err := s.readManifest(ctx, desc, checkManifest)
	if err != nil {
		return nil, err
	}
	var img *Image
	err = s.readConfig(ctx, manifest, func(config imagespec.Image) error {
		img = newImage(desc, manifest, config)
		return nil
	})
	return img, err
}

// newImage is what is known of an image without reading it again.
func newImage(desc imagespec.Descriptor, manifest imagespec.Manifest, config imagespec.Image) *Image {
	size := uint64(desc.Size) + uint64(manifest.Config.Size)
	for _, l := range manifest.Layers {
		size += uint64(l.Size)
	}
	img := &Image{
		ID:       manifest.Config.Digest.String(),
		ChainID:  identity.ChainID(config.RootFS.DiffIDs),
		Size:     size,
		Config:   config.Config,
		Platform: platforms.Normalize(config.Platform),
		// All images stay in memory: nothing that an index may have added does.
		manifest: imagespec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size},
	}
	img.Platform.OSFeatures = nil
	if weight(img.Config) > maxKept {
		img.Config, img.partial = imagespec.ImageConfig{User: img.Config.User}, true
	}
	return img
}

// maxKept bounds what stays in memory of an image's configuration.
const maxKept = 16 << 10

// weight is about what a configuration takes in memory.
func weight(c imagespec.ImageConfig) int {
	const each = 64
	n := len(c.User) + len(c.WorkingDir) + len(c.StopSignal)
	for _, list := range [][]string{c.Env, c.Entrypoint, c.Cmd} {
		for _, s := range list {
			n += each + len(s)
		}
	}
	for _, set := range []map[string]struct{}{c.ExposedPorts, c.Volumes} {
		for s := range set {
			n += each + len(s)
		}
	}
	for k, v := range c.Labels {
		n += each + len(k) + len(v)
	}
	return n
}

// Whole returns an image with its whole Config: of a large one only the user
// stays in memory. errdefs.ErrFailedPrecondition if it would take too much.
func (s *Store) Whole(ctx context.Context, img *Image) (*Image, error) {
	if err := img.usable(); err != nil {
		return nil, err
	}
	if !img.partial {
		return img, nil
	}
	spec, err := s.config(ctx, img)
	if err != nil {
		return nil, err
	}
	whole := *img
	whole.Config, whole.partial = spec.Config, false
	return &whole, nil
}

// platformManifest finds, in the content store, the manifest of this node's
// platform below target.
func (s *Store) platformManifest(ctx context.Context, target imagespec.Descriptor) (imagespec.Descriptor, error) {
	var found *imagespec.Descriptor
	find := images.HandlerFunc(func(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		if images.IsManifestType(desc.MediaType) {
			found = &desc
			return nil, images.ErrSkipDesc
		}
		if !images.IsIndexType(desc.MediaType) {
			return nil, fmt.Errorf("unexpected media type %q: %w", desc.MediaType, errdefs.ErrInvalidArgument)
		}
		// What reads it next knows no bound.
		return nil, s.checkDocument(ctx, desc)
	})
	children := images.LimitManifests(images.FilterPlatforms(s.children, s.platform), s.platform, 1)
	if err := images.Walk(ctx, images.Handlers(find, children), target); err != nil {
		return imagespec.Descriptor{}, err
	}
	if found == nil {
		return imagespec.Descriptor{}, fmt.Errorf("no match for platform in %s: %w", target.Digest, errdefs.ErrNotFound)
	}
	return *found, nil
}

// config reads the whole configuration of an image.
func (s *Store) config(ctx context.Context, img *Image) (*imagespec.Image, error) {
	ctx = s.context(ctx)
	manifest, err := s.readManifest(ctx, img.manifest, checkManifest)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", img.ID, err)
	}
	var config imagespec.Image
	err = s.readConfig(ctx, manifest, func(c imagespec.Image) error { config = c; return nil })
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", img.ID, err)
	}
	return &config, nil
}
