package catalog

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// An image of WebAssembly has its module as a layer of a type of its own, which shims read
// from the content store, or as a file of an ordinary layer. Only the latter are layers
// of a root filesystem. Both stay in the content store as long as the image.

// WasmConfig is the type of configurations that name modules and nothing to run them with.
// To everybody but a handler of modules such an image is an artifact.
const WasmConfig = "application/vnd.wasm.config.v0+json"

// rootLayers are the layers of an image that its root filesystem consists of.
func rootLayers(m imagespec.Manifest) (layers []imagespec.Descriptor) {
	for _, l := range m.Layers {
		if images.IsLayerType(l.MediaType) {
			layers = append(layers, l)
		}
	}
	return layers
}

// RootDiffIDs are what a configuration says of the layers of the root filesystem. For
// images of modules it may count the other layers too: those who build them disagree.
func RootDiffIDs(m imagespec.Manifest, built imagespec.Platform, diffIDs []digest.Digest) ([]digest.Digest, error) {
	root := m.Layers
	if IsWasm(built) {
		root = rootLayers(m)
	}
	if len(root) == len(diffIDs) {
		return diffIDs, nil
	}
	if !IsWasm(built) || len(m.Layers) != len(diffIDs) {
		return nil, fmt.Errorf("manifest has %d layers, configuration %d: %w", len(root), len(diffIDs), errdefs.ErrInvalidArgument)
	}
	of := make([]digest.Digest, 0, len(root))
	for i, l := range m.Layers {
		if images.IsLayerType(l.MediaType) {
			of = append(of, diffIDs[i])
		}
	}
	return of, nil
}

// RootChain identifies the layers of the root filesystem of a container. Blobs of an
// artifact are none.
func (i *Image) RootChain() digest.Digest {
	if IsArtifact(i.ChainID) {
		return ""
	}
	return i.ChainID
}

// artifactPlatform is what an artifact was built for, if it is one of modules. Whatever
// else its configuration may be, it is an artifact.
func (r *Reader) artifactPlatform(ctx context.Context, m imagespec.Manifest) (imagespec.Platform, error) {
	if m.Config.MediaType != WasmConfig {
		return imagespec.Platform{}, nil
	}
	var p imagespec.Platform
	err := r.ReadJSON(ctx, m.Config, &p, func() error { return nil })
	if err != nil || len(p.Architecture)+len(p.OS)+len(p.Variant)+len(p.OSVersion) > MaxName {
		return imagespec.Platform{}, ctx.Err()
	}
	p.OSFeatures = nil
	return p, nil
}
