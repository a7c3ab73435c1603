package catalog

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestPlatformOf(t *testing.T) {
	for name, tc := range map[string]struct {
		d    *handler.Definition
		want Platform
	}{
		"no handler":                  {nil, NodePlatform},
		"runc":                        {&handler.Definition{Type: handler.OCI, Path: "/usr/bin/runc"}, NodePlatform},
		"crun for modules":            {&handler.Definition{Type: handler.OCI, Path: "/usr/bin/crun", Platform: "wasi/wasm"}, WasmPlatform},
		"Kata":                        {&handler.Definition{Type: handler.Shim, Path: "/opt/containerd-shim-kata-v2"}, NodePlatform},
		"a shim of modules":           {&handler.Definition{Type: handler.Shim, Path: "/opt/containerd-shim-spin-v2", Platform: "wasi/wasm"}, WasmPlatform},
		"a shim that runs them too":   {&handler.Definition{Type: handler.Shim, Path: "/opt/containerd-shim-spin-v2"}, AnyPlatform},
		"a shim nobody knows of them": {&handler.Definition{Type: handler.Shim, Path: "/opt/containerd-shim-mine-v1", Platform: "wasi/wasm"}, WasmPlatform},
	} {
		test.Equal(t, name, PlatformOf(tc.d), tc.want)
	}
}

func TestPlatformMatching(t *testing.T) {
	node := imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	foreign := imagespec.Platform{OS: "linux", Architecture: "s390x"}
	wasm := func(os string) imagespec.Platform { return imagespec.Platform{OS: os, Architecture: "wasm"} }
	for _, tc := range []struct {
		wanted Platform
		of     []imagespec.Platform
		want   string
	}{
		{NodePlatform, []imagespec.Platform{wasm("wasi"), foreign, node}, runtime.GOARCH},
		{NodePlatform, []imagespec.Platform{wasm("wasi"), foreign}, ""},
		{WasmPlatform, []imagespec.Platform{node, wasm("wasip2"), wasm("wasip1"), wasm("wasi")}, "wasi"},
		{WasmPlatform, []imagespec.Platform{node, wasm("wasip2"), wasm("wasip1")}, "wasip1"},
		{WasmPlatform, []imagespec.Platform{node, wasm("js")}, ""},
		{WasmPlatform, []imagespec.Platform{node, {OS: "wasi", Architecture: "wasm", Variant: "v1"}}, "wasi"},
		{AnyPlatform, []imagespec.Platform{foreign, {OS: "wasi", Architecture: "wasm", Variant: "v1"}}, "wasi"},
		{WasmPlatform, []imagespec.Platform{{OS: "wasi", Architecture: "wasm32"}}, ""},
		{AnyPlatform, []imagespec.Platform{wasm("wasi"), foreign, node}, runtime.GOARCH},
		{AnyPlatform, []imagespec.Platform{foreign, wasm("wasip1")}, "wasip1"},
		{AnyPlatform, []imagespec.Platform{foreign}, ""},
	} {
		by, got := tc.wanted.Matcher(), ""
		var best *imagespec.Platform
		for _, p := range tc.of {
			if by.Match(p) && (best == nil || by.Less(p, *best)) {
				best = &p
			}
		}
		if best != nil {
			if got = best.Architecture; IsWasm(*best) {
				got = best.OS
			}
		}
		test.Equal(t, fmt.Sprintf("%s of %v", tc.wanted, tc.of), got, tc.want)
	}
}

func TestRootDiffIDs(t *testing.T) {
	const tar, module = imagespec.MediaTypeImageLayerGzip, "application/wasm"
	wasm, node := imagespec.Platform{OS: "wasi", Architecture: "wasm"}, imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	for name, tc := range map[string]struct {
		built  imagespec.Platform
		layers []string
		ids    []digest.Digest
		want   []digest.Digest
		wrong  bool
	}{
		"an ordinary image":                 {built: node, layers: []string{tar, tar}, ids: []digest.Digest{"a", "b"}, want: []digest.Digest{"a", "b"}},
		"one layer too few":                 {built: node, layers: []string{tar, tar}, ids: []digest.Digest{"a"}, wrong: true},
		"a module in an ordinary image":     {built: node, layers: []string{module}, wrong: true},
		"a module":                          {built: wasm, layers: []string{module}},
		"a module that counts as layer":     {built: wasm, layers: []string{module}, ids: []digest.Digest{"a"}},
		"a file":                            {built: wasm, layers: []string{tar}, ids: []digest.Digest{"a"}, want: []digest.Digest{"a"}},
		"files beside a module":             {built: wasm, layers: []string{module, tar, tar}, ids: []digest.Digest{"b", "c"}, want: []digest.Digest{"b", "c"}},
		"files beside one that counts":      {built: wasm, layers: []string{tar, module, tar}, ids: []digest.Digest{"a", "b", "c"}, want: []digest.Digest{"a", "c"}},
		"a number that nothing accounts":    {built: wasm, layers: []string{tar, module, tar}, ids: []digest.Digest{"a"}, wrong: true},
		"more of them than there are blobs": {built: wasm, layers: []string{module}, ids: []digest.Digest{"a", "b"}, wrong: true},
	} {
		var m imagespec.Manifest
		for _, of := range tc.layers {
			m.Layers = append(m.Layers, imagespec.Descriptor{MediaType: of})
		}
		got, err := RootDiffIDs(m, tc.built, tc.ids)
		if (err != nil) != tc.wrong || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
