package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// Limits apply to pulls only: an image that is in the store stays usable under lower limits.
func TestImagesOutliveLowerLimits(t *testing.T) {
	env := "LONG=" + strings.Repeat("x", 32<<10)
	_, s, pulled := pulled(t, Config{}, build(t, v1.Config{User: "7", Env: []string{env}},
		layer(t, file{name: "a"}), layer(t, file{name: "b"}), layer(t, file{name: "c"})))
	test.Must(t, s.Meter.MeasureStored(disk.InNamespace(t.Context())))
	before, _ := s.Meter.Usage()
	test.Must(t, s.Close())

	for name, limits := range map[string]bounds.Limits{
		"fewer layers":      {MaxLayers: 1},
		"smaller documents": {MaxManifestSize: 64},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.cfg
			c.Limits = limits
			s := test.Value(Open(t.Context(), c))(t)
			defer func() { test.Must(t, s.Close()) }()
			img, err := s.Get(app)
			test.Mustf(t, err, "the image is gone")
			whole, err := s.Whole(t.Context(), img)
			if err != nil || !slices.Equal(whole.Config.Env, []string{env}) {
				t.Errorf("the configuration is %+v, %v", whole, err)
			}
			if img.ID != pulled.ID || len(s.List()) != 1 || img.Size != pulled.Size {
				t.Errorf("the image is %+v, want %+v", img, pulled)
			}
			if now, _ := s.Meter.Usage(); now != before {
				t.Errorf("the usage is %+v, before the restart it was %+v", now, before)
			}
			ctx := disk.InNamespace(t.Context())
			m := test.Value(s.catalog.Reader.ReadManifest(ctx, img.Manifest, catalog.CheckManifest))(t)
			for _, l := range m.Layers {
				test.Checkf(t, test.Err(s.files.Content.Info(ctx, l.Digest)), "layer %s", l.Digest)
			}
		})
	}
}

// An image in the store is deleted only if it is damaged, not because its pull would
// be refused today.
func TestStartDeletesOnlyDamagedImages(t *testing.T) {
	s := openStore(t, Config{})
	ctx := disk.InNamespace(t.Context())
	manyURLs := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayerGzip, Digest: digest.FromString("l"), Size: 1, URLs: make([]string, catalog.MaxURLs+1)}
	longType := imagespec.Descriptor{MediaType: "a/" + strings.Repeat("b", catalog.MaxMediaType), Digest: digest.FromString("m"), Size: 1}
	longUser, missing := strings.Repeat("u", catalog.MaxName+1), "missing"
	cases := map[string]struct {
		user         string
		layer        imagespec.Descriptor
		kept, usable bool
	}{
		"usual":     {"a", imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayer, Digest: digest.FromString("k"), Size: 1}, true, true},
		"many-urls": {"b", manyURLs, true, true},
		"long-type": {"c", longType, true, true},
		"long-user": {longUser, manyURLs, true, false},
		"damaged":   {missing, manyURLs, false, false},
	}
	manifests, configs := map[string]imagespec.Descriptor{}, map[string]imagespec.Descriptor{}
	for name, c := range cases {
		manifests[name], configs[name] = storeImage(ctx, t, s, name, c.user, c.layer)
	}
	test.Must(t, s.files.Content.Delete(ctx, configs["damaged"].Digest))

	s = reopen(t, s)
	for name, c := range cases {
		_, err := s.files.Images.Get(ctx, name)
		if c.kept && err != nil || !c.kept && !errdefs.IsNotFound(err) {
			t.Errorf("%s: record: %v; want it kept: %v", name, err, c.kept)
		}
		if _, err := s.files.Content.Info(ctx, manifests[name].Digest); (err == nil) != c.kept {
			t.Errorf("%s: manifest: %v; want it kept: %v", name, err, c.kept)
		}
		img, err := s.Get(configs[name].Digest.String())
		if (err == nil) != c.kept {
			t.Errorf("%s: image: %v; want it kept: %v", name, err, c.kept)
		}
		if err != nil {
			continue
		}
		if _, err := s.Whole(ctx, img); (err == nil) != c.usable {
			t.Errorf("%s: configuration: %v; want it usable: %v", name, err, c.usable)
		}
	}
}

// An image that cannot be read at the moment may be whole: its record stays for the next start.
func TestStartKeepsUnreadableImages(t *testing.T) {
	_, s, img := pulled(t, Config{}, build(t, v1.Config{}))
	ctx, cancel := context.WithCancel(disk.InNamespace(t.Context()))
	cancel()
	test.Must(t, s.catalog.Load(ctx))
	manifest := blobPath(s, img.Manifest.Digest)
	test.Must(t, os.Rename(manifest, manifest+"~"))
	test.Must(t, os.Symlink(manifest, manifest)) // a read fails with ELOOP
	s = reopen(t, s)
	test.Is(t, test.Err(s.Get(app)), errdefs.IsNotFound, "get the unreadable image")
	dropped, err := s.files.DropDamaged(disk.InNamespace(t.Context()), img.Manifest, true)
	test.Equal(t, fmt.Sprintf("dropped (%v)", err), dropped, false)
	test.Must(t, s.Close())
	test.Must(t, os.Rename(manifest+"~", manifest))
	s = openStore(t, s.cfg)
	test.Checkf(t, test.Err(s.Get(app)), "get the image that is readable again")
}

// An image that would take too much memory cannot be used, but it is listed, and it can be removed
// with all of its content.
func TestImagesBeyondMemoryAreListedAndRemoved(t *testing.T) {
	long := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayer, Digest: digest.FromString("l"), Size: 1}
	many := long
	many.Annotations = map[string]string{}
	for i := range catalog.MaxElements {
		many.Annotations[fmt.Sprint(i)] = ""
	}
	for name, store := range map[string]func(ctx context.Context, s *Store) (id, target digest.Digest){
		"configuration": func(ctx context.Context, s *Store) (id, target digest.Digest) {
			manifest, config := storeImage(ctx, t, s, app, strings.Repeat("u", catalog.MaxName+1), long)
			return config.Digest, manifest.Digest
		},
		"manifest": func(ctx context.Context, s *Store) (id, target digest.Digest) {
			manifest, _ := storeImage(ctx, t, s, app, "u", many)
			return manifest.Digest, manifest.Digest
		},
		"index": func(ctx context.Context, s *Store) (id, target digest.Digest) {
			manifest, _ := storeImage(ctx, t, s, app, "u", long)
			manifest.Annotations = many.Annotations
			index := storeIndex(ctx, t, s, manifest, nil)
			return index.Digest, index.Digest
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, Config{})
			ctx := disk.InNamespace(t.Context())
			id, target := store(ctx, s)
			s = reopen(t, s)
			list := s.List()
			if len(list) != 1 || list[0].ID != id.String() || !slices.Equal(list[0].RepoTags, []string{app}) {
				t.Fatalf("listed are %+v, want %s", list, id)
			}
			stored := uint64(0)
			test.Must(t, s.files.Content.Walk(ctx, func(i content.Info) error { stored += uint64(i.Size); return nil }))
			if list[0].Size != stored {
				t.Errorf("the image's size is %d, but %d bytes are stored", list[0].Size, stored)
			}
			img := test.Value(s.Get(app))(t)
			status, err := NewService(s).ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: img.ID}, Verbose: true})
			if err != nil || status.GetImage().GetId() != img.ID || !strings.Contains(status.GetInfo()["info"], "the limit is") {
				t.Errorf("status: %v %v", status, err)
			}
			_, wholeErr := s.Whole(ctx, img)
			_, rootErr := s.PrepareRootfs(ctx, "container", img, "", nil)
			_, volumeErr := s.PrepareVolume(ctx, "container", img, "")
			for _, err := range []error{wholeErr, rootErr, volumeErr} {
				if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "remove it") {
					t.Errorf("using the image returned %v", err)
				}
			}
			test.Must(t, s.Remove(ctx, id.String()))
			<-s.views.Work.Collector.Request()
			if _, err := s.files.Content.Info(ctx, target); !errdefs.IsNotFound(err) || len(s.List()) > 0 {
				t.Errorf("after Remove its content: %v; images %v", err, s.List())
			}
			s = reopen(t, s)
			if list := s.List(); len(list) > 0 {
				t.Errorf("the removed image is back after a restart: %+v", list)
			}
		})
	}
}

// An image that would take too much memory stays listed, even if its index names another platform
// than its record.
func TestImageBeyondMemoryThatDisagreesWithItsIndex(t *testing.T) {
	s := openStore(t, Config{})
	ctx := disk.InNamespace(t.Context())
	layer := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayer, Digest: digest.FromString("l"), Size: 1}
	manifest, config := storeImage(ctx, t, s, app, strings.Repeat("u", catalog.MaxName+1), layer)
	node := platforms.DefaultSpec()
	manifest.Platform = &node
	storeIndex(ctx, t, s, manifest, map[string]string{"berth.dev/platform": string(catalog.WasmPlatform)})
	s = reopen(t, s)
	if list := s.List(); len(list) != 1 || list[0].ID != config.Digest.String() {
		t.Errorf("listed are %+v, want %s", list, config.Digest)
	}
}

// storeIndex stores an index of the manifest, and makes the name app refer to that index.
func storeIndex(ctx context.Context, t *testing.T, s *Store, manifest imagespec.Descriptor, labels map[string]string) imagespec.Descriptor {
	t.Helper()
	text := test.Value(json.Marshal(imagespec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex, Manifests: []imagespec.Descriptor{manifest}}))(t)
	index := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageIndex, Digest: digest.FromBytes(text), Size: int64(len(text))}
	refers := content.WithLabels(map[string]string{"containerd.io/gc.ref.content.m.0": manifest.Digest.String()})
	test.Must(t, content.WriteBlob(ctx, s.files.Content, "index", bytes.NewReader(text), index, refers))
	test.Must(t, test.Err(s.files.Images.Update(ctx, images.Image{Name: app, Target: index, Labels: labels})))
	return index
}

// storeImage stores an image of one layer without the layer's blob. It checks no limits.
func storeImage(ctx context.Context, t *testing.T, s *Store, name, user string, layer imagespec.Descriptor) (manifest, config imagespec.Descriptor) {
	t.Helper()
	put := func(what any, mediaType string, labels map[string]string) imagespec.Descriptor {
		text := test.Value(json.Marshal(what))(t)
		desc := imagespec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
		test.Must(t, content.WriteBlob(ctx, s.files.Content, name+mediaType, bytes.NewReader(text), desc, content.WithLabels(labels)))
		return desc
	}
	config = put(imagespec.Image{
		Platform: imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config:   imagespec.ImageConfig{User: user},
		RootFS:   imagespec.RootFS{Type: "layers", DiffIDs: []digest.Digest{layer.Digest}},
	}, imagespec.MediaTypeImageConfig, nil)
	manifest = put(imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest,
		Config: config, Layers: []imagespec.Descriptor{layer},
	}, imagespec.MediaTypeImageManifest, map[string]string{"containerd.io/gc.ref.content.config": config.Digest.String()})
	test.Must(t, test.Err(s.files.Images.Create(ctx, images.Image{Name: name, Target: manifest})))
	return manifest, config
}
