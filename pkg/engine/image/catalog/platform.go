package catalog

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// Platform selects an image of an index.
type Platform string

const (
	// NodePlatform selects images of this node's platform.
	NodePlatform Platform = ""
	// WasmPlatform selects images of WebAssembly modules.
	WasmPlatform Platform = handler.PlatformWasm
	// AnyPlatform selects images of the node and of modules, and prefers those of the node.
	AnyPlatform Platform = "any"
)

// PlatformOf returns the platform of a handler's images. A shim that runs modules also runs
// programs of the node, unless the handler's platform is WebAssembly.
func PlatformOf(d *handler.Definition) Platform {
	switch {
	case d == nil:
		return NodePlatform
	case d.Platform == handler.PlatformWasm:
		return WasmPlatform
	case probe.RunsWasm(d.Path):
		return AnyPlatform
	}
	return NodePlatform
}

// takes reports whether p selects images of a kind.
func (p Platform) takes(kind Platform) bool { return p == AnyPlatform || p == kind }

// KindOf returns NodePlatform or WasmPlatform, by what the image was built for.
func KindOf(p imagespec.Platform) Platform {
	if IsWasm(p) {
		return WasmPlatform
	}
	return NodePlatform
}

// Recorded returns the platform to record for an image that p selected.
func (p Platform) Recorded(img *Image) Platform {
	if p == AnyPlatform {
		return KindOf(img.Platform)
	}
	return p
}

// String returns the platform's name in messages.
func (p Platform) String() string {
	node := platforms.Format(platforms.DefaultSpec())
	switch p {
	case NodePlatform:
		return node
	case AnyPlatform:
		return node + " or " + string(WasmPlatform)
	case WasmPlatform:
	}
	return string(p)
}

// Matcher returns the matcher for the entries of an index.
func (p Platform) Matcher() platforms.MatchComparer {
	switch p {
	case WasmPlatform:
		return wasmMatcher{}
	case AnyPlatform:
		return eitherMatcher{platforms.Default(), wasmMatcher{}}
	case NodePlatform:
	}
	return platforms.Default()
}

// wasmSystems are the interfaces that modules are built for, the preferred first. Any of them may
// be called "wasi": engines detect the interface from the module.
var wasmSystems = []string{"wasi", "wasip1", "wasip2"}

// IsWasm reports whether an image has WebAssembly modules. Shims decide by the architecture alone.
func IsWasm(p imagespec.Platform) bool { return p.Architecture == "wasm" }

// wasmMatcher accepts any variant, unlike the matchers of package platforms.
type wasmMatcher struct{}

func (wasmMatcher) Match(p imagespec.Platform) bool {
	return IsWasm(p) && slices.Contains(wasmSystems, p.OS)
}

func (wasmMatcher) Less(a, b imagespec.Platform) bool {
	return slices.Index(wasmSystems, a.OS) < slices.Index(wasmSystems, b.OS)
}

// eitherMatcher prefers the matches of first.
type eitherMatcher struct{ first, second platforms.MatchComparer }

func (m eitherMatcher) Match(p imagespec.Platform) bool { return m.first.Match(p) || m.second.Match(p) }

func (m eitherMatcher) Less(a, b imagespec.Platform) bool {
	if inA, inB := m.first.Match(a), m.first.Match(b); inA != inB {
		return inA
	} else if inA {
		return m.first.Less(a, b)
	}
	return m.second.Less(a, b)
}

// PlatformError reports an image that is not built for the wanted platform.
type PlatformError struct {
	wanted Platform
	// has are the platforms that it was built for, as far as known.
	has []string
}

func (e *PlatformError) Error() string {
	has := "an unnamed platform"
	if len(e.has) > 0 {
		has = strings.Join(e.has, ", ")
	}
	return fmt.Sprintf("no match for platform %s: the image is built for %s", e.wanted, has)
}

func (e *PlatformError) Unwrap() error { return errdefs.ErrNotFound }

// Advice describes the mismatch and what runs the image.
func (e *PlatformError) Advice() string {
	hasWasm := slices.ContainsFunc(e.has, func(p string) bool { return strings.HasSuffix(p, "/wasm") })
	switch {
	case e.wanted == NodePlatform && hasWasm:
		return fmt.Sprintf("the image is built for WebAssembly, not for %s; a handler with platform = %q runs it", e.wanted, handler.PlatformWasm)
	case e.wanted == WasmPlatform && len(e.has) > 0:
		return fmt.Sprintf("the image is not built for WebAssembly, and the handler has platform = %q; use a handler without that setting, or an image of a WebAssembly module", handler.PlatformWasm)
	}
	return fmt.Sprintf("the image is not built for %s", e.wanted)
}

// maxPlatforms bounds the platforms in an error.
const maxPlatforms = 8

// platformsOf returns the platforms in an index, without entries that are not images.
func platformsOf(manifests []imagespec.Descriptor) (named []string) {
	for _, m := range manifests {
		if m.Platform == nil || m.Platform.OS == "unknown" {
			continue
		}
		name := platforms.Format(*m.Platform)
		if len(name) > MaxName || slices.Contains(named, name) {
			continue
		}
		if len(named) == maxPlatforms {
			return append(named, "…")
		}
		named = append(named, name)
	}
	return named
}

// checkPlatform refuses an image of the wrong kind (KindOf). It compares neither system nor
// architecture: an emulator may run the image.
func checkPlatform(wanted Platform, built imagespec.Platform) error {
	if wanted.takes(KindOf(built)) {
		return nil
	}
	return &PlatformError{wanted: wanted, has: []string{platforms.Format(built)}}
}

// platformLabel is on the record of a name that was pulled for WasmPlatform.
const platformLabel = "berth.dev/platform"

func recordedPlatform(labels map[string]string) Platform {
	if labels[platformLabel] == string(WasmPlatform) {
		return WasmPlatform
	}
	return NodePlatform
}

// An image of WebAssembly has its module as a layer with a special media type, which shims read
// from the content store, or as a file in an ordinary layer. Only ordinary layers are part of a
// root filesystem. Layers of both kinds stay in the content store as long as the image.

// wasmConfig is the media type of configurations that describe a module but not how to run it.
// Images with it are artifacts, except for handlers that run modules.
const wasmConfig = "application/vnd.wasm.config.v0+json"

// rootLayers returns the layers that the root filesystem consists of.
func rootLayers(m imagespec.Manifest) (layers []imagespec.Descriptor) {
	for _, l := range m.Layers {
		if images.IsLayerType(l.MediaType) {
			layers = append(layers, l)
		}
	}
	return layers
}

// RootDiffIDs returns the diff IDs of the root filesystem's layers. Some builders also list the
// other layers in an image of modules.
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

// RootChain identifies the layers of a container's root filesystem. It is empty for an artifact.
func (i *Image) RootChain() digest.Digest {
	if IsArtifact(i.ChainID) {
		return ""
	}
	return i.ChainID
}

// artifactPlatform returns what an artifact of modules was built for. It is empty for other
// artifacts, and for an unreadable configuration.
func (r *Reader) artifactPlatform(ctx context.Context, m imagespec.Manifest) (imagespec.Platform, error) {
	if m.Config.MediaType != wasmConfig {
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
