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
		"crun for Wasm":               {&handler.Definition{Type: handler.OCI, Path: "/usr/bin/crun", Platform: "wasi/wasm"}, WasmPlatform},
		"Kata":                        {&handler.Definition{Type: handler.Shim, Path: "/opt/containerd-shim-kata-v2"}, NodePlatform},
		"Wasm shim, platform Wasm":    {&handler.Definition{Type: handler.Shim, Path: "/opt/containerd-shim-spin-v2", Platform: "wasi/wasm"}, WasmPlatform},
		"Wasm shim, no platform":      {&handler.Definition{Type: handler.Shim, Path: "/opt/containerd-shim-spin-v2"}, AnyPlatform},
		"unknown shim, platform Wasm": {&handler.Definition{Type: handler.Shim, Path: "/opt/containerd-shim-mine-v1", Platform: "wasi/wasm"}, WasmPlatform},
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
		test.Equal(t, fmt.Sprintf("best of %v for platform %s", tc.of, tc.wanted), got, tc.want)
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
		"an ordinary image":                   {built: node, layers: []string{tar, tar}, ids: []digest.Digest{"a", "b"}, want: []digest.Digest{"a", "b"}},
		"one layer too few":                   {built: node, layers: []string{tar, tar}, ids: []digest.Digest{"a"}, wrong: true},
		"Wasm layer in an ordinary image":     {built: node, layers: []string{module}, wrong: true},
		"module without a diff ID":            {built: wasm, layers: []string{module}},
		"module with a diff ID":               {built: wasm, layers: []string{module}, ids: []digest.Digest{"a"}},
		"ordinary layer in a Wasm image":      {built: wasm, layers: []string{tar}, ids: []digest.Digest{"a"}, want: []digest.Digest{"a"}},
		"layers, module without a diff ID":    {built: wasm, layers: []string{module, tar, tar}, ids: []digest.Digest{"b", "c"}, want: []digest.Digest{"b", "c"}},
		"layers, module with a diff ID":       {built: wasm, layers: []string{tar, module, tar}, ids: []digest.Digest{"a", "b", "c"}, want: []digest.Digest{"a", "c"}},
		"fewer diff IDs than ordinary layers": {built: wasm, layers: []string{tar, module, tar}, ids: []digest.Digest{"a"}, wrong: true},
		"more diff IDs than blobs":            {built: wasm, layers: []string{module}, ids: []digest.Digest{"a", "b"}, wrong: true},
	} {
		var m imagespec.Manifest
		for _, of := range tc.layers {
			m.Layers = append(m.Layers, imagespec.Descriptor{MediaType: of})
		}
		got, err := RootDiffIDs(m, tc.built, tc.ids)
		if (err != nil) != tc.wrong || !slices.Equal(got, tc.want) {
			t.Errorf("%s: diff IDs %v, error %v; want %v, an error: %v", name, got, err, tc.want, tc.wrong)
		}
	}
}
