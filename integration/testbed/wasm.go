package testbed

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// WasmModule builds the module of integration/wasm/guest.
func WasmModule(t T) []byte {
	t.Helper()
	root, err := Repository()
	if err != nil {
		t.Fatalf("%v", err)
	}
	file := filepath.Join(t.TempDir(), "guest.wasm")
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", file, "./integration/wasm/guest")
	command.Dir = root
	command.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build the module: %v\n%s", err, out)
	}
	module, err := os.ReadFile(file)
	Mustf(t, err, "read the module")
	return module
}

// wasmPlatform is the platform of images of modules.
var wasmPlatform = v1.Platform{OS: "wasi", Architecture: "wasm"}

// WasmOption changes an image of a module.
type WasmOption func(*wasmPlan)

type wasmPlan struct {
	platform   v1.Platform
	configType types.MediaType
	layerType  types.MediaType
	diffIDs    bool
	change     func(*v1.Config)
}

// WasmFor sets another platform of the image.
func WasmFor(p v1.Platform) WasmOption { return func(w *wasmPlan) { w.platform = p } }

// WasmConfigured changes the configuration of the image.
func WasmConfigured(change func(*v1.Config)) WasmOption {
	return func(w *wasmPlan) { w.change = change }
}

// WasmTypes sets other media types of the configuration and the module.
func WasmTypes(config, layer types.MediaType) WasmOption {
	return func(w *wasmPlan) { w.configType, w.layerType = config, layer }
}

// WasmDiffIDs lists the module among the root's layers in the configuration.
func WasmDiffIDs() WasmOption { return func(w *wasmPlan) { w.diffIDs = true } }

// WasmLayer makes an image whose only layer is a module, as runwasi and Spin do. It has no root
// filesystem.
func WasmLayer(t T, module []byte, options ...WasmOption) v1.Image {
	t.Helper()
	plan := wasmPlan{platform: wasmPlatform, configType: types.OCIConfigJSON, layerType: "application/wasm", change: func(*v1.Config) {}}
	for _, option := range options {
		option(&plan)
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		static.NewLayer(module, plan.layerType))
	Mustf(t, err, "add the module")
	image = built(t, image, plan)
	if plan.configType == types.OCIConfigJSON {
		return image
	}
	manifest, err := image.Manifest()
	Mustf(t, err, "read the image's manifest")
	manifest = manifest.DeepCopy()
	manifest.Config.MediaType = plan.configType
	return retyped{image, manifest}
}

// retyped is an image with another manifest, because the library cannot make one with an unknown
// type of configuration.
type retyped struct {
	v1.Image
	manifest *v1.Manifest
}

func (r retyped) Manifest() (*v1.Manifest, error) { return r.manifest, nil }
func (r retyped) RawManifest() ([]byte, error)    { return json.Marshal(r.manifest) }
func (r retyped) Digest() (v1.Hash, error)        { return partial.Digest(r) }
func (r retyped) Size() (int64, error)            { return partial.Size(r) }

// WasmFile makes an image whose root filesystem has a module as the file /app.wasm.
func WasmFile(t T, module []byte, options ...WasmOption) v1.Image {
	t.Helper()
	plan := wasmPlan{platform: wasmPlatform, diffIDs: true, change: func(*v1.Config) {}}
	for _, option := range options {
		option(&plan)
	}
	change := plan.change
	plan.change = func(c *v1.Config) {
		c.Entrypoint = []string{"/app.wasm"}
		change(c)
	}
	return built(t, Image(t, WithLayer(File{Path: "app.wasm", Mode: 0o644, Body: module})), plan)
}

// built changes the image's configuration according to plan.
func built(t T, image v1.Image, plan wasmPlan) v1.Image {
	t.Helper()
	config, err := image.ConfigFile()
	Mustf(t, err, "read the image's configuration")
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = plan.platform.OS, plan.platform.Architecture, v1.Time{Time: imageTime}
	plan.change(&config.Config)
	if !plan.diffIDs {
		config.RootFS.DiffIDs = nil
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatalf("configure the image: %v", err)
	}
	return image
}

// Index makes an index of images. The platform of each is that of its configuration.
func Index(t T, images ...v1.Image) v1.ImageIndex {
	t.Helper()
	var index v1.ImageIndex = empty.Index
	for _, image := range images {
		config, err := image.ConfigFile()
		Mustf(t, err, "read an image's configuration")
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: config.OS, Architecture: config.Architecture}},
		})
	}
	return index
}
