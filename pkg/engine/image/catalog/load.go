package catalog

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// Load reads an image, without names, from its content. The limits of pulls do not apply, only
// those that bound the daemon's memory.
func (r *Reader) Load(ctx context.Context, target imagespec.Descriptor, wanted Platform) (*Image, error) {
	desc, err := r.platformManifest(ctx, target, wanted)
	if err != nil {
		return nil, err
	}
	var img *Image
	manifest, err := r.ReadManifest(ctx, desc, func(m imagespec.Manifest) error {
		if DescribesArtifact(m) {
			img = newArtifact(desc, m)
		}
		return CheckManifest(m)
	})
	if err != nil {
		return nil, err
	}
	if img != nil {
		img.Platform, err = r.artifactPlatform(ctx, manifest)
		return img, err
	}
	err = r.readConfig(ctx, manifest, func(config imagespec.Image) error {
		img, err = newImage(desc, manifest, config)
		return err
	})
	return img, err
}

func newImage(desc imagespec.Descriptor, manifest imagespec.Manifest, config imagespec.Image) (*Image, error) {
	root, err := RootDiffIDs(manifest, config.Platform, config.RootFS.DiffIDs)
	if err != nil {
		return nil, err
	}
	img := &Image{
		ID:         imageID(desc, manifest, len(root)),
		ChainID:    identity.ChainID(root),
		Size:       sizeOf(desc, manifest),
		Config:     config.Config,
		Platform:   platforms.Normalize(config.Platform),
		Checkpoint: isCheckpoint(manifest),
		Manifest:   bare(desc),
	}
	img.Platform.OSFeatures = nil
	if weight(img.Config) > maxKept {
		img.Config, img.partial = imagespec.ImageConfig{User: img.Config.User}, true
	}
	return img, nil
}

// bare drops from a descriptor what an index may have added, to save memory.
func bare(desc imagespec.Descriptor) imagespec.Descriptor {
	return imagespec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size}
}

func sizeOf(desc imagespec.Descriptor, m imagespec.Manifest) uint64 {
	size := desc.Size + m.Config.Size
	for _, l := range m.Layers {
		size += l.Size
	}
	return uint64(size)
}

// imageID returns the digest of the configuration, but the manifest's digest in two cases. An image
// with layers outside the root filesystem may share its configuration with images of other modules.
// A checkpoint may share its configuration with an image that is not a checkpoint.
func imageID(desc imagespec.Descriptor, m imagespec.Manifest, root int) string {
	if root != len(m.Layers) || isCheckpoint(m) {
		return desc.Digest.String()
	}
	return m.Config.Digest.String()
}

// maxKept bounds, in bytes, the configuration that an image keeps in memory.
const maxKept = 16 << 10

// weight estimates the memory of a configuration.
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

// Whole returns an image with its complete Config.
func (r *Reader) Whole(ctx context.Context, img *Image) (*Image, error) {
	if err := img.Runnable(); err != nil {
		return nil, err
	}
	if !img.partial {
		return img, nil
	}
	spec, err := r.Config(ctx, img)
	if err != nil {
		return nil, err
	}
	whole := *img
	whole.Config, whole.partial = spec.Config, false
	return &whole, nil
}

// platformManifest finds the manifest of a wanted platform, below target in the content store.
func (r *Reader) platformManifest(ctx context.Context, target imagespec.Descriptor, wanted Platform) (imagespec.Descriptor, error) {
	var found *imagespec.Descriptor
	find := images.HandlerFunc(func(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		if images.IsManifestType(desc.MediaType) {
			found = &desc
			return nil, images.ErrSkipDesc
		}
		if !images.IsIndexType(desc.MediaType) {
			return nil, fmt.Errorf("unexpected media type %q: %w", desc.MediaType, errdefs.ErrInvalidArgument)
		}
		// PickOf reads the index again, without a limit.
		return nil, r.checkDocument(ctx, desc)
	})
	children := PickOf(r.Children, wanted)
	if err := images.Walk(ctx, images.Handlers(find, children), target); err != nil {
		return imagespec.Descriptor{}, err
	}
	if found == nil {
		return imagespec.Descriptor{}, fmt.Errorf("%s: %w", target.Digest, &PlatformError{wanted: wanted})
	}
	return *found, nil
}

// PickOf returns a handler that limits the manifests from children to the best match for wanted.
func PickOf(children images.HandlerFunc, wanted Platform) images.HandlerFunc {
	by := wanted.Matcher()
	return images.LimitManifests(images.FilterPlatforms(children, by), by, 1)
}

// Config reads the whole configuration of an image.
func (r *Reader) Config(ctx context.Context, img *Image) (*imagespec.Image, error) {
	ctx = disk.InNamespace(ctx)
	manifest, err := r.ReadManifest(ctx, img.Manifest, CheckManifest)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", img.ID, err)
	}
	var config imagespec.Image
	err = r.readConfig(ctx, manifest, func(c imagespec.Image) error { config = c; return nil })
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", img.ID, err)
	}
	return &config, nil
}

// unusable describes a stored image that would take too much memory to use. Its ID is the digest of
// target if its manifest takes too much memory, too.
func (r *Reader) unusable(ctx context.Context, target imagespec.Descriptor, wanted Platform, cause error) (*Image, error) {
	img := &Image{ID: target.Digest.String(), unusable: cause}
	if desc, err := r.platformManifest(ctx, target, wanted); err == nil {
		unchecked := func(imagespec.Manifest) error { return nil }
		if manifest, err := r.ReadManifest(ctx, desc, unchecked); err == nil && manifest.Config.Digest.Validate() == nil {
			img.ID = imageID(desc, manifest, len(rootLayers(manifest)))
		}
	}
	var err error
	img.Size, err = r.held(ctx, target.Digest, map[digest.Digest]bool{})
	return img, err
}

// held returns the size of a blob and of all content that it keeps from being collected.
func (r *Reader) held(ctx context.Context, d digest.Digest, seen map[digest.Digest]bool) (uint64, error) {
	if seen[d] {
		return 0, nil
	}
	seen[d] = true
	info, err := r.content.Info(ctx, d)
	if errdefs.IsNotFound(err) {
		return 0, nil // layers may have been discarded after they were unpacked
	}
	if err != nil {
		return 0, err
	}
	size := uint64(info.Size) //nolint:gosec // not negative
	for label, value := range info.Labels {
		if !strings.HasPrefix(label, "containerd.io/gc.ref.content") {
			continue
		}
		more, err := r.held(ctx, digest.Digest(value), seen)
		if err != nil {
			return 0, err
		}
		size += more
	}
	return size, nil
}

// Usable returns an error if the image can only be removed.
func (i *Image) Usable() error {
	if i.unusable == nil {
		return nil
	}
	return fmt.Errorf("image %s cannot be used; remove it and use another: %v: %w", i.ID, i.unusable, errdefs.ErrFailedPrecondition)
}
