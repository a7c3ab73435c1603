package catalog

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// unusable describes an image that is in the store, and that would take too much
// memory to use: what is known of it without reading it. Its ID is that of its
// manifest or index if those cannot be read either.
func (r *Reader) unusable(ctx context.Context, target imagespec.Descriptor, wanted Platform, cause error) (*Image, error) {
	img := &Image{ID: target.Digest.String(), unusable: cause}
	if desc, err := r.platformManifest(ctx, target, wanted); err == nil {
		unchecked := func(imagespec.Manifest) error { return nil }
		if manifest, err := r.ReadManifest(ctx, desc, unchecked); err == nil && manifest.Config.Digest.Validate() == nil {
			img.ID = imageID(desc, manifest, len(RootLayers(manifest)))
		}
	}
	var err error
	img.Size, err = r.held(ctx, target.Digest, map[digest.Digest]bool{})
	return img, err
}

// held is the size of a blob and of all that it keeps from being collected.
func (r *Reader) held(ctx context.Context, d digest.Digest, seen map[digest.Digest]bool) (uint64, error) {
	if seen[d] {
		return 0, nil
	}
	seen[d] = true
	info, err := r.content.Info(ctx, d)
	if errdefs.IsNotFound(err) {
		return 0, nil // a layer that is unpacked need not be there
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
