package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
)

// An image that was encrypted for this node is refused if its nonce is wrong. Otherwise ocicrypt
// would panic in a goroutine of containerd.
func TestEncryptedImageWithWrongNonce(t *testing.T) {
	for name, annotation := range map[string]string{
		"short nonce": `{"cipher":"AES_256_CTR_HMAC_SHA256","hmac":"YQ==","cipheroptions":{"nonce":"YQ=="}}`,
		"empty nonce": `{"cipher":"AES_256_CTR_HMAC_SHA256","hmac":"YQ==","cipheroptions":{"nonce":""}}`,
	} {
		t.Run(name, func(t *testing.T) {
			reg := newTestRegistry(t)
			private, public := keyPair(t)
			img := encrypt(t, layered(t, v1.Config{}), public)
			manifest := test.Value(img.Manifest())(t)
			manifest = manifest.DeepCopy()
			for _, l := range manifest.Layers {
				l.Annotations[unpack.CipherAnnotation] = encodeBase64(annotation)
			}
			reg.push(t, "app:1", img)
			text := test.Value(json.Marshal(manifest))(t)
			reg.setManifest(text)
			keys := t.TempDir()
			test.Must(t, os.WriteFile(filepath.Join(keys, "app.pem"), private, 0o600))
			s := openStore(t, Config{HostsDir: reg.hosts(t), DecryptionKeysDir: keys})
			test.Refused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: domain + "/app:1"})), errdefs.IsFailedPrecondition, "nonce")
			wantStored(t, s, 0, 0)
		})
	}
}

// A layer that needs too much memory fails its own pull, and later pulls succeed.
func TestLayerThatTakesMemory(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector needs more memory than the unpacking process has")
	}
	var text bytes.Buffer
	z := gzip.NewWriter(&text)
	w := tar.NewWriter(z)
	for i := range 200 {
		test.Must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprint("d", i), PAXRecords: map[string]string{"BERTH.long": strings.Repeat("a", 1_000_000)}}))
	}
	test.Must(t, errors.Join(w.Close(), z.Close()))
	reg := newTestRegistry(t)
	img := test.Value(mutate.AppendLayers(build(t, v1.Config{}), static.NewLayer(text.Bytes(), types.OCILayer)))(t)
	reg.push(t, "bad:1", img)
	reg.push(t, "good:1", layered(t, v1.Config{}))
	s := openStore(t, Config{HostsDir: reg.hosts(t), Limits: bounds.Limits{MaxUnpackMemory: 128 << 20}})
	for range 2 { // the first failure must release everything that the second pull needs
		test.Refused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: domain + "/bad:1"})), errdefs.IsInvalidArgument, "registry.max_unpack_memory")
	}
	wantStored(t, s, 0, 0)
	pullImage(t, s, domain+"/good:1")
}

// Only a small part of a large configuration stays in memory. Store.Whole reads the whole
// configuration when a container needs it.
func TestLargeConfigIsReadAgain(t *testing.T) {
	reg := newTestRegistry(t)
	var env []string
	for i := range 1000 {
		env = append(env, fmt.Sprintf("V%d=%0100d", i, i))
	}
	reg.push(t, "app:1", build(t, v1.Config{User: "app", Env: env}, layer(t, file{name: "f"})))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	pullImage(t, s, domain+"/app:1")
	img := test.Value(s.Get(domain + "/app:1"))(t)
	if len(img.Config.Env) != 0 || img.Config.User != "app" {
		t.Errorf("in memory are %d variables and the user %q, want 0 and app", len(img.Config.Env), img.Config.User)
	}
	whole := test.Value(s.Whole(t.Context(), img))(t)
	if !slices.Equal(whole.Config.Env, env) || whole.Config.User != "app" || whole.ID != img.ID {
		t.Errorf("the whole image is %v", whole)
	}
	if again, err := s.Whole(t.Context(), whole); err != nil || again != whole {
		t.Errorf("Whole of a whole image returns %v, %v", again, err)
	}
}

// If a blob is in the store as a layer, it is not read into memory as a configuration.
func TestLayerAsConfiguration(t *testing.T) {
	reg := newTestRegistry(t)
	big := static.NewLayer(make([]byte, 5<<20), types.OCIUncompressedLayer)
	h := test.Value(big.Digest())(t)
	img := test.Value(mutate.AppendLayers(build(t, v1.Config{}), big))(t)
	reg.push(t, "first:1", img)
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	pullImage(t, s, domain+"/first:1")

	text := test.Value(json.Marshal(imagespec.Manifest{
		MediaType: imagespec.MediaTypeImageManifest,
		Config:    imagespec.Descriptor{MediaType: imagespec.MediaTypeImageConfig, Digest: digest.Digest(h.String()), Size: 100},
	}))(t)
	reg.setManifest(text)
	test.Refused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: domain + "/second:1"})), errdefs.IsInvalidArgument, "its descriptor says 100")
}

// Only a layer with a foreign media type is pulled from its URLs.
func TestForeignLayer(t *testing.T) {
	reg := newTestRegistry(t)
	inner := layer(t, file{name: "f", body: "elsewhere"})
	img := build(t, v1.Config{}, inner)
	reg.push(t, "app:1", img)
	elsewhere, _ := newEavesdropper(t, false, func(_ *eavesdropper, w http.ResponseWriter, _ *http.Request) {
		b, err := inner.Compressed()
		if err != nil {
			panic(err)
		}
		_, _ = io.Copy(w, b)
	})
	for mediaType, want := range map[types.MediaType]bool{types.OCIRestrictedLayer: true, types.OCILayer: false} {
		manifest := test.Value(img.Manifest())(t)
		manifest = manifest.DeepCopy()
		manifest.Layers[0].MediaType = mediaType
		manifest.Layers[0].URLs = []string{elsewhere.URL + "/" + string(mediaType)}
		text := test.Value(json.Marshal(manifest))(t)
		reg.setManifest(text)
		s := openStore(t, Config{HostsDir: reg.hosts(t)})
		pullImage(t, s, domain+"/app:1")
		test.Equal(t, fmt.Sprintf("%s: was the layer's URL requested", mediaType), strings.Contains(elsewhere.text(), string(mediaType)), want)
	}
}

func TestWorkerOutlivesPanic(t *testing.T) {
	w := disk.NewWorker()
	runs := 0
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx, func(context.Context) {
			if runs++; runs == 1 {
				panic("first")
			}
		})
	}()
	<-w.Request()
	<-w.Request()
	stop()
	<-ended
	if runs != 2 {
		t.Errorf("the worker ran %d times, want 2", runs)
	}
}

// An image's annotations for snapshotters do not reach the snapshotters of this node. The
// annotations could name a parent that never arrives, or a layer of another image.
func TestImageNamesTheLayerBelow(t *testing.T) {
	reg := newTestRegistry(t)
	bottom := layer(t, file{name: "no/such/directory/file"})
	diffID := test.Value(bottom.DiffID())(t)
	img := test.Value(mutate.Append(build(t, v1.Config{}), mutate.Addendum{Layer: bottom, Annotations: map[string]string{
		disk.ParentLabel: diffID.String(), "containerd.io/snapshot/max-size": "1",
	}}))(t)
	reg.push(t, "app:1", img)
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	pulled := test.Value(s.Pull(ctx, pull.Request{Ref: domain + "/app:1"}))(t)
	info := test.Value(s.files.Layers[disk.Overlayfs].Stat(disk.InNamespace(t.Context()), pulled.ChainID.String()))(t)
	for name := range info.Labels {
		if strings.HasPrefix(name, "containerd.io/snapshot/") && name != snapshots.LabelSnapshotDiffID {
			t.Errorf("the layer has the label %s from the image", name)
		}
	}
}

// setManifest makes the registry answer every request for a manifest with text.
func (r *testRegistry) setManifest(text []byte) {
	r.setGuard(func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.Contains(req.URL.Path, "/manifests/") {
			return false
		}
		w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(text).String())
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		_, _ = w.Write(text)
		return true
	})
}
