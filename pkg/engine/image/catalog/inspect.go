package catalog

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// Described is the part of an image's documents that a fetch needs.
type Described struct {
	Manifest imagespec.Manifest
	// Wasm is set if the image was built for WebAssembly.
	Wasm bool
}

// Inspect fetches the documents of an image and checks them, so that an image is refused before a
// layer is downloaded.
func (r *Reader) Inspect(ctx context.Context, target imagespec.Descriptor, wanted Platform, fetch images.HandlerFunc) (Described, error) {
	var d Described
	desc, err := r.findManifest(ctx, target, wanted, fetch)
	if err != nil {
		return d, err
	}
	m, err := r.ReadManifest(ctx, desc, func(m imagespec.Manifest) error { return checkParts(r.Limits, m) })
	if d.Manifest = m; err != nil {
		return d, err
	}
	if _, err := fetch(ctx, m.Config); err != nil {
		return d, fmt.Errorf("configuration: %w", err)
	}
	if DescribesArtifact(m) {
		p, err := r.artifactPlatform(ctx, m)
		d.Wasm = IsWasm(p)
		return d, err
	}
	err = r.readConfig(ctx, m, func(config imagespec.Image) error {
		if err := checkPlatform(wanted, config.Platform); err != nil {
			return err
		}
		d.Wasm = IsWasm(config.Platform)
		for _, d := range config.RootFS.DiffIDs {
			if err := d.Validate(); err != nil {
				return fmt.Errorf("configuration: digest %.100q of a layer: %w", string(d), err)
			}
		}
		return nil
	})
	return d, err
}

// findManifest fetches target and the indexes below it, down to a wanted platform's manifest.
func (r *Reader) findManifest(ctx context.Context, target imagespec.Descriptor, wanted Platform, fetch images.HandlerFunc) (imagespec.Descriptor, error) {
	pick := PickOf(r.Children, wanted)
	desc := target
	for range maxIndexDepth + 1 {
		isIndex := images.IsIndexType(desc.MediaType)
		if !isIndex && !images.IsManifestType(desc.MediaType) {
			return desc, fmt.Errorf("unexpected media type %.100q: %w", desc.MediaType, errdefs.ErrInvalidArgument)
		}
		if err := CheckDocument(r.Limits, "manifest", desc); err != nil {
			return desc, err
		}
		if _, err := fetch(ctx, desc); err != nil {
			return desc, err
		}
		if err := r.checkDocument(ctx, desc); err != nil {
			return desc, fmt.Errorf("manifest: %w", err)
		}
		if !isIndex {
			return desc, nil
		}
		children, err := pick(ctx, desc)
		if errdefs.IsNotFound(err) || err == nil && len(children) == 0 { // not found: no child matches
			return desc, r.unmatched(ctx, desc, wanted)
		}
		if err != nil {
			return desc, err
		}
		desc = children[0]
	}
	return desc, bounds.Beyond("image has more than %d indexes above its manifest", maxIndexDepth)
}

func (r *Reader) unmatched(ctx context.Context, index imagespec.Descriptor, wanted Platform) error {
	all, err := r.Children(ctx, index)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", index.Digest, &PlatformError{wanted: wanted, has: platformsOf(all)})
}

// CheckManifest refuses an invalid manifest.
func CheckManifest(m imagespec.Manifest) error {
	if DescribesArtifact(m) {
		if err := checkArtifact(m); err != nil {
			return err
		}
	}
	for _, layer := range m.Layers {
		if IsDocument(layer.MediaType) || layer.Size < 0 {
			return fmt.Errorf("layer %s with %d bytes and media type %.100q is not valid: %w", layer.Digest, layer.Size, layer.MediaType, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

func checkConfig(m imagespec.Manifest, config imagespec.Image) error {
	if _, err := RootDiffIDs(m, config.Platform, config.RootFS.DiffIDs); err != nil {
		return err
	}
	if p := config.Platform; len(config.Config.User)+len(p.Architecture)+len(p.OS)+len(p.Variant)+len(p.OSVersion) > MaxName {
		return bounds.Beyond("user and platform in the configuration are too long; the limit is %d bytes", MaxName)
	}
	return nil
}

// ReadManifest reads a manifest, checks it by f, and then drops the fields that nothing uses.
func (r *Reader) ReadManifest(ctx context.Context, desc imagespec.Descriptor, f func(imagespec.Manifest) error) (m imagespec.Manifest, err error) {
	err = r.ReadJSON(ctx, desc, &m, func() error {
		if err := f(m); err != nil {
			return err
		}
		m = leanManifest(m)
		return nil
	})
	if err != nil {
		return imagespec.Manifest{}, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

// readConfig checks the configuration of a manifest and passes it to f.
func (r *Reader) readConfig(ctx context.Context, m imagespec.Manifest, f func(imagespec.Image) error) error {
	var config imagespec.Image
	var checked error
	err := r.ReadJSON(ctx, m.Config, &config, func() error {
		if checked = checkConfig(m, config); checked == nil {
			checked = f(config)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return checked
}

func (r *Reader) checkDocument(ctx context.Context, desc imagespec.Descriptor) error {
	done, err := r.reserve(ctx, desc.Size)
	if err != nil {
		return err
	}
	defer done()
	_, err = r.readDocument(ctx, desc)
	return err
}

// readDocument reads a manifest or a configuration from the store, unless it would take too much
// memory. It does not check the limits of pulls.
func (r *Reader) readDocument(ctx context.Context, desc imagespec.Descriptor) ([]byte, error) {
	info, err := r.content.Info(ctx, desc.Digest)
	if err != nil {
		return nil, err
	}
	// Nothing has compared the size of content that was in the store before the pull.
	if info.Size != desc.Size {
		return nil, fmt.Errorf("%s has %d bytes, but its descriptor says %d: %w", desc.Digest, info.Size, desc.Size, errdefs.ErrInvalidArgument)
	}
	if desc.Size > bounds.MaxStored {
		return nil, bounds.Beyond("document %s has %d bytes, more than %d", desc.Digest, desc.Size, int64(bounds.MaxStored))
	}
	text, err := content.ReadBlob(ctx, r.content, desc)
	if err != nil {
		return nil, err
	}
	return text, elements(text)
}

// ReadJSON decodes a document, and calls f while memory for the document is reserved.
func (r *Reader) ReadJSON(ctx context.Context, desc imagespec.Descriptor, into any, f func() error) error {
	done, err := r.reserve(ctx, desc.Size)
	if err != nil {
		return err
	}
	defer done()
	text, err := r.readDocument(ctx, desc)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return err
	}
	return f()
}
