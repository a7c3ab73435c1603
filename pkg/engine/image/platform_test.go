package image

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// wasmConfig is the media type of configurations that describe a module but not how to run it.
const wasmConfig = "application/vnd.wasm.config.v0+json"

// wasmImage returns a Wasm image of a module, which is not a tar layer, and of layers. If counted,
// the configuration has a diff ID for the module, too.
func wasmImage(t testing.TB, os string, config types.MediaType, counted bool, module string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if module != "" {
		layers = append([]v1.Layer{static.NewLayer([]byte(module), "application/wasm")}, layers...)
	}
	img = test.Value(mutate.AppendLayers(img, layers...))(t)
	c := test.Value(img.ConfigFile())(t)
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Config.Entrypoint = os, "wasm", []string{"/app.wasm"}
	if !counted && module != "" && len(c.RootFS.DiffIDs) > 0 {
		c.RootFS.DiffIDs = c.RootFS.DiffIDs[1:]
	}
	img = test.Value(mutate.ConfigFile(img, c))(t)
	if config == types.OCIConfigJSON {
		return img
	}
	m := test.Value(img.Manifest())(t)
	m = m.DeepCopy()
	m.Config.MediaType = config
	return retyped{Image: img, manifest: m}
}

// retyped is an image with another manifest. The library itself makes no manifest with a
// configuration of an unknown media type.
type retyped struct {
	v1.Image
	manifest *v1.Manifest
	// config replaces the image's configuration unless it is nil.
	config []byte
}

func (r retyped) RawConfigFile() ([]byte, error) {
	if r.config != nil {
		return r.config, nil
	}
	return r.Image.RawConfigFile()
}

func (r retyped) ConfigName() (v1.Hash, error) { return r.manifest.Config.Digest, nil }

func (r retyped) Manifest() (*v1.Manifest, error) { return r.manifest, nil }
func (r retyped) RawManifest() ([]byte, error)    { return json.Marshal(r.manifest) }
func (r retyped) Digest() (v1.Hash, error)        { return partial.Digest(r) }
func (r retyped) Size() (int64, error)            { return partial.Size(r) }

func hashOf(t testing.TB, text []byte) v1.Hash {
	t.Helper()
	h, _, err := v1.SHA256(bytes.NewReader(text))
	test.Must(t, err)
	return h
}

func pullFor(t testing.TB, s *Store, wanted catalog.Platform, ref string) *catalog.Image {
	t.Helper()
	return test.Value(s.Pull(t.Context(), pull.Request{Ref: ref, Platform: wanted}))(t)
}

// TestPullWasm checks that modules stay in the content store even if layers are discarded, and that
// a container's root filesystem has only the files of ordinary layers.
func TestPullWasm(t *testing.T) {
	const ociConfig = types.OCIConfigJSON
	files := layer(t, file{name: "app.wasm", body: "module"})
	for name, tc := range map[string]struct {
		img   v1.Image
		root  map[string]string
		blobs int
	}{
		"module without a diff ID":           {wasmImage(t, "wasi", ociConfig, false, "m"), map[string]string{}, 3},
		"module with a diff ID":              {wasmImage(t, "wasip1", ociConfig, true, "m"), map[string]string{}, 3},
		"ordinary layer":                     {wasmImage(t, "wasip1", ociConfig, true, "", files), map[string]string{"app.wasm": "module"}, 3},
		"layer and module without a diff ID": {wasmImage(t, "wasi", ociConfig, false, "m", files), map[string]string{"app.wasm": "module"}, 4},
		"layer and module with a diff ID":    {wasmImage(t, "wasi", ociConfig, true, "m", files), map[string]string{"app.wasm": "module"}, 4},
		"artifact":                           {wasmImage(t, "wasip2", wasmConfig, false, "m"), map[string]string{}, 3},
	} {
		for _, discard := range []bool{false, true} {
			for _, snapshotter := range []string{disk.Overlayfs, disk.Native} {
				t.Run(name+"/"+snapshotter, func(t *testing.T) {
					reg, s := serve(t, Config{DiscardLayers: discard, DefaultSnapshotter: snapshotter}, tc.img)
					img := pullFor(t, s, catalog.WasmPlatform, app)
					if !catalog.IsWasm(img.Platform) {
						t.Errorf("the image's platform is %v, want Wasm", img.Platform)
					}
					check := func(s *Store) {
						t.Helper()
						<-s.views.Work.Collector.Request()
						if blobs, _, _ := stored(t, s); len(blobs) != tc.blobs {
							t.Errorf("the store has %d blobs %v, want %d", len(blobs), blobs, tc.blobs)
						}
						run := test.Value(s.ToRun(app, catalog.WasmPlatform))(t)
						root := test.Value(s.PrepareRootfs(t.Context(), "c1", run, "", nil))(t)
						dir := mounted(t, root.Mounts)
						sameTree(t, tree(t, dir), tc.root)
						test.Must(t, mount.UnmountAll(dir, 0))
						test.Must(t, s.RemoveRootfs(t.Context(), "c1", ""))
					}
					check(s)
					s = reopen(t, s)
					test.Must(t, s.Retain(t.Context(), nil))
					check(s)
					before := reg.count("GET", "/blobs/")
					if again := pullFor(t, s, catalog.WasmPlatform, app); again.ID != img.ID || reg.count("GET", "/blobs/") != before {
						t.Errorf("the second pull returned %s, want %s, and fetched %d blobs", again.ID, img.ID, reg.count("GET", "/blobs/")-before)
					}
					test.Must(t, s.Remove(t.Context(), img.ID))
					wantStored(t, s, 0, 0)
				})
			}
		}
	}
}

// both returns an image for this node, a Wasm image, and an index of the two.
func both(t testing.TB) (node, wasm v1.Image, index v1.ImageIndex) {
	t.Helper()
	node, wasm = build(t, v1.Config{}, layer(t, file{name: "node"})), wasmImage(t, "wasi", types.OCIConfigJSON, false, "m")
	return node, wasm, withModule(node, wasm)
}

// TestOneNameForTwoPlatforms checks that a name refers to the image that was pulled last by this
// name, also after a restart.
func TestOneNameForTwoPlatforms(t *testing.T) {
	node, wasm, index := both(t)
	_, s := serve(t, Config{}, index)
	test.Must(t, s.Retain(t.Context(), nil))
	for _, tc := range []struct {
		pulled, as, other catalog.Platform
		id                string
	}{
		{catalog.WasmPlatform, catalog.WasmPlatform, catalog.NodePlatform, digestOf(t, wasm)},
		{catalog.AnyPlatform, catalog.NodePlatform, catalog.WasmPlatform, idOf(t, node)}, // AnyPlatform prefers the node's
		{catalog.WasmPlatform, catalog.WasmPlatform, catalog.NodePlatform, digestOf(t, wasm)},
	} {
		if got := pullFor(t, s, tc.pulled, app); got.ID != tc.id {
			t.Errorf("the pull for %s returned %s, want %s", tc.pulled, got.ID, tc.id)
		}
		for range 2 {
			for _, wanted := range []catalog.Platform{tc.as, catalog.AnyPlatform} {
				if img, err := s.Find(app, wanted); err != nil || img.ID != tc.id {
					t.Errorf("Find for %s: %v, %v; want %s", wanted, img, err, tc.id)
				}
			}
			if img, err := s.Find(app, tc.other); !errdefs.IsNotFound(err) {
				t.Errorf("Find for %s: %v, %v; want none", tc.other, img, err)
			}
			for _, called := range []string{app, tc.id} {
				if run, err := s.ToRun(called, tc.as); err != nil || run.ID != tc.id {
					t.Errorf("ToRun of %s for %s: %v, %v; want %s", called, tc.as, run, err, tc.id)
				}
				if _, err := s.ToRun(called, tc.other); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "imagePullPolicy: Always") {
					t.Errorf("ToRun of %s for %s: %v, want a failed precondition", called, tc.other, err)
				}
			}
			if all := s.List(); len(all) != 1 {
				t.Errorf("listed are %+v, want one image", all)
			}
			s = reopen(t, s)
			test.Must(t, s.Retain(t.Context(), nil))
		}
	}
	test.Must(t, s.Remove(t.Context(), app))
	wantStored(t, s, 0, 0)
}

// Pulls of one index for two platforms, under two names, do not affect each other's image.
func TestTwoNamesOfOneIndex(t *testing.T) {
	node, wasm, index := both(t)
	reg, s := serve(t, Config{}, index)
	reg.push(t, "wasm:1", index)
	pullFor(t, s, catalog.NodePlatform, app)
	pullFor(t, s, catalog.WasmPlatform, domain+"/wasm:1")
	s = reopen(t, s)
	test.Must(t, s.Retain(t.Context(), nil))
	<-s.views.Work.Collector.Request()
	if run, err := s.ToRun(app, catalog.NodePlatform); err != nil || run.ID != idOf(t, node) {
		t.Errorf("ToRun of the node's name returns %v, %v", run, err)
	}
	test.Must(t, s.Remove(t.Context(), app))
	if run, err := s.ToRun(domain+"/wasm:1", catalog.WasmPlatform); err != nil || run.ID != digestOf(t, wasm) {
		t.Errorf("after the removal of the node's name ToRun of the other returns %v, %v", run, err)
	}
	test.Must(t, s.Remove(t.Context(), domain+"/wasm:1"))
	wantStored(t, s, 0, 0)
}

func TestImageOfAnotherPlatform(t *testing.T) {
	reg := newTestRegistry(t)
	node, wasm, _ := both(t)
	reg.push(t, "node:1", node)
	reg.push(t, "wasm:1", wasm)
	reg.push(t, "index:1", indexOf(map[string]v1.Image{runtime.GOARCH: node, "s390x": buildFor(t, "s390x", v1.Config{})}))
	reg.push(t, "artifact:1", artifact(t, titled{title: "weights", text: "w"}))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	for _, tc := range []struct {
		ref    string
		wanted catalog.Platform
		says   []string
	}{
		{"wasm:1", catalog.NodePlatform, []string{"built for WebAssembly, not for linux/" + runtime.GOARCH, `a handler with platform = "wasi/wasm" runs it`, "wasi/wasm"}},
		{"node:1", catalog.WasmPlatform, []string{`not built for WebAssembly, and the handler has platform = "wasi/wasm"`, "linux/" + runtime.GOARCH}},
		{"index:1", catalog.WasmPlatform, []string{`not built for WebAssembly, and the handler has platform = "wasi/wasm"`, "linux/" + runtime.GOARCH, "linux/s390x"}},
	} {
		_, err := s.Pull(t.Context(), pull.Request{Ref: domain + "/" + tc.ref, Platform: tc.wanted})
		if !errdefs.IsNotFound(err) {
			t.Errorf("the pull of %s for %s returned %v, want not found", tc.ref, tc.wanted, err)
			continue
		}
		test.Says(t, err, tc.says...)
	}
	wantStored(t, s, 0, 0)
	// An artifact for volumes can be pulled for any platform, and cannot be run for any.
	pullFor(t, s, catalog.WasmPlatform, domain+"/artifact:1")
	for _, wanted := range []catalog.Platform{catalog.NodePlatform, catalog.WasmPlatform, catalog.AnyPlatform} {
		test.Is(t, test.Err(s.ToRun(domain+"/artifact:1", wanted)), errdefs.IsFailedPrecondition, "ToRun of an artifact for %s", wanted)
	}
	// A Wasm artifact whose configuration is not JSON is an ordinary artifact.
	odd := wasmImage(t, "wasi", wasmConfig, false, "m").(retyped)
	odd.config = []byte("not JSON")
	odd.manifest.Config.Size, odd.manifest.Config.Digest = int64(len(odd.config)), hashOf(t, odd.config)
	reg.push(t, "odd:1", odd)
	if got := pullFor(t, s, catalog.WasmPlatform, domain+"/odd:1"); got.ArtifactType != wasmConfig || catalog.IsWasm(got.Platform) {
		t.Errorf("the artifact with a broken configuration is %+v", got)
	}
	// A Wasm artifact runs only for WasmPlatform. For the node it is an ordinary artifact.
	reg.push(t, "module:1", wasmImage(t, "wasip2", wasmConfig, false, "m"))
	pullFor(t, s, catalog.NodePlatform, domain+"/module:1")
	test.Refused(t, test.Err(s.ToRun(domain+"/module:1", catalog.NodePlatform)), errdefs.IsFailedPrecondition, "is an artifact")
	if got := pullFor(t, s, catalog.WasmPlatform, domain+"/module:1"); got.ArtifactType != wasmConfig {
		t.Errorf("the Wasm artifact is %+v", got)
	}
	test.Check(t, test.Err(s.ToRun(domain+"/module:1", catalog.WasmPlatform)))
}

// withModule returns an index of an image for the node, and of an image that the index lists as
// Wasm.
func withModule(node, module v1.Image) v1.ImageIndex {
	return mutate.AppendManifests(indexOf(map[string]v1.Image{runtime.GOARCH: node}),
		mutate.IndexAddendum{Add: module, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "wasi", Architecture: "wasm"}}})
}

// An image whose configuration has another platform than its index is the same after a restart.
func TestIndexAndConfigurationDisagree(t *testing.T) {
	for name, idx := range map[string]v1.ImageIndex{
		"Wasm image that is listed for the node":   indexOf(map[string]v1.Image{runtime.GOARCH: wasmImage(t, "wasi", types.OCIConfigJSON, false, "m")}),
		"image of the node that is listed as Wasm": withModule(buildFor(t, "s390x", v1.Config{}), build(t, v1.Config{}, layer(t, file{name: "node"}))),
	} {
		t.Run(name, func(t *testing.T) {
			_, s := serve(t, Config{}, idx)
			img := pullFor(t, s, catalog.AnyPlatform, app)
			s = reopen(t, s)
			test.Must(t, s.Retain(t.Context(), nil))
			if again, err := s.Get(app); err != nil || again.ID != img.ID {
				t.Errorf("after a restart the image is %v, %v; want %s", again, err, img.ID)
			}
		})
	}
}

// Images of different modules are different images even if their configurations are the same, with
// or without diff IDs of the modules.
func TestModulesOfOneConfiguration(t *testing.T) {
	for _, counted := range []bool{false, true} {
		reg := newTestRegistry(t)
		s := openStore(t, Config{HostsDir: reg.hosts(t)})
		first := wasmImage(t, "wasi", types.OCIConfigJSON, counted, "module 1")
		config := test.Value(first.ConfigFile())(t)
		second := test.Value(mutate.ConfigFile(wasmImage(t, "wasi", types.OCIConfigJSON, counted, "module 2"), config))(t)
		if idOf(t, first) != idOf(t, second) {
			t.Fatal("the configurations of the two images differ")
		}
		tags, ids := []string{"1", "2"}, []string{}
		for i, img := range []v1.Image{first, second} {
			reg.push(t, "app:"+tags[i], img)
			pulled := pullFor(t, s, catalog.WasmPlatform, domain+"/app:"+tags[i])
			ids = append(ids, pulled.ID)
			test.Equal(t, fmt.Sprintf("manifest of version %s", tags[i]), pulled.Manifest.Digest.String(), digestOf(t, img))
		}
		s = reopen(t, s)
		test.Must(t, s.Retain(t.Context(), nil))
		for i, tag := range tags {
			run, err := s.ToRun(ids[i], catalog.WasmPlatform)
			if err != nil || run.ID != ids[i] || !slices.Equal(run.RepoTags, []string{domain + "/app:" + tag}) {
				t.Errorf("ToRun of version %s returns %+v, %v", tag, run, err)
			}
		}
		test.Must(t, s.Remove(t.Context(), ids[1]))
		if left, err := s.Get(ids[0]); err != nil || left.Manifest.Digest.String() != digestOf(t, first) {
			t.Errorf("after the removal of the second image the first is %+v, %v", left, err)
		}
	}
}

// Clients of the containerd API can copy the record of a Wasm image to another name, and write back
// a record that they read, including berth's labels.
func TestClientsCopyImagesOfModules(t *testing.T) {
	_, _, index := both(t)
	_, s := serve(t, Config{}, index)
	img := pullFor(t, s, catalog.WasmPlatform, app)
	ctx := disk.InNamespace(t.Context())
	records := s.Clients().Images()
	rec := test.Value(records.Get(ctx, app))(t)
	if rec.Labels["berth.dev/platform"] == "" {
		t.Fatalf("the record has no label of the platform: %v", rec.Labels)
	}
	for _, paths := range [][]string{nil, {"labels"}, {"target"}, {"target", "labels"}} {
		again, err := records.Update(ctx, rec, paths...)
		if err != nil || again.Labels["berth.dev/platform"] != rec.Labels["berth.dev/platform"] {
			t.Errorf("Update with the paths %q returned the labels %v, %v", paths, again.Labels, err)
		}
	}
	rec.Name = domain + "/copy:1"
	test.Must(t, test.Err(records.Create(ctx, rec)))
	for _, name := range []string{app, domain + "/copy:1"} {
		if run, err := s.ToRun(name, catalog.WasmPlatform); err != nil || run.ID != img.ID {
			t.Errorf("ToRun of %s returns %+v, %v; want %s", name, run, err, img.ID)
		}
	}
}
