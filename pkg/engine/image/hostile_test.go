package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

func copyBody(w io.Writer, resp *http.Response) (int64, error) { return io.Copy(w, resp.Body) }

// What ocicrypt does with the nonce of an image that was encrypted for this node
// is a panic, in a goroutine of containerd's.
func TestEncryptedImageWithWrongNonce(t *testing.T) {
	for name, annotation := range map[string]string{
		"in the clear": `{"cipher":"AES_256_CTR_HMAC_SHA256","hmac":"YQ==","cipheroptions":{"nonce":"YQ=="}}`,
		"no cipher":    `{"cipher":"AES_256_CTR_HMAC_SHA256","hmac":"YQ==","cipheroptions":{"nonce":""}}`,
	} {
		t.Run(name, func(t *testing.T) {
			reg := newTestRegistry(t)
			private, public := keyPair(t)
			img := encrypt(t, layered(t, v1.Config{}), public)
			manifest, err := img.Manifest()
			must(t, err)
			manifest = manifest.DeepCopy()
			for _, l := range manifest.Layers {
				l.Annotations[cipherAnnotation] = encodeBase64(annotation)
			}
			reg.push(t, "app:1", img)
			text, err := json.Marshal(manifest)
			must(t, err)
			reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/manifests/") {
					return false
				}
				w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
				w.Header().Set("Docker-Content-Digest", digest.FromBytes(text).String())
				w.Header().Set("Content-Length", fmt.Sprint(len(text)))
				_, _ = w.Write(text)
				return true
			})
			keys := t.TempDir()
			must(t, os.WriteFile(filepath.Join(keys, "app.pem"), private, 0o600))
			s := openStore(t, Config{HostsDir: reg.hosts(t), DecryptionKeysDir: keys})
			if _, err := s.Pull(t.Context(), PullRequest{Ref: domain + "/app:1"}); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "nonce") {
				t.Errorf("pull: %v", err)
			}
			wantStored(t, s, 0, 0)
		})
	}
}

type payloads = map[string]typeurl.Any

// panicking is the media type of a layer whose opener panics.
const panicking = "application/vnd.oci.image.layer.v1.tar+panics"

func init() {
	diff.RegisterProcessor(diff.StaticHandler(panicking, func(context.Context, diff.StreamProcessor, payloads) (diff.StreamProcessor, error) {
		panic("is not valid")
	}))
}

func TestPanicCostsThePull(t *testing.T) {
	reg := newTestRegistry(t)
	img, err := mutate.Append(build(t, v1.Config{}), mutate.Addendum{Layer: static.NewLayer([]byte("x"), types.MediaType(panicking))})
	must(t, err)
	reg.push(t, "bad:1", img)
	reg.push(t, "good:1", layered(t, v1.Config{}))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	for range 2 { // nothing that the first held is held still
		if _, err := s.Pull(t.Context(), PullRequest{Ref: domain + "/bad:1"}); !errdefs.IsInternal(err) || !strings.Contains(err.Error(), "is not valid") {
			t.Errorf("pull: %v", err)
		}
	}
	wantStored(t, s, 0, 0)
	pullImage(t, s, domain+"/good:1")
}

// Of a large configuration little stays in memory, and a container gets all of it.
func TestLargeConfigIsReadAgain(t *testing.T) {
	reg := newTestRegistry(t)
	var env []string
	for i := range 1000 {
		env = append(env, fmt.Sprintf("V%d=%0100d", i, i))
	}
	reg.push(t, "app:1", build(t, v1.Config{User: "app", Env: env}, layer(t, file{name: "f"})))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	pullImage(t, s, domain+"/app:1")
	img, err := s.Get(domain + "/app:1")
	must(t, err)
	if len(img.Config.Env) != 0 || img.Config.User != "app" {
		t.Errorf("in memory are %d variables and the user %q", len(img.Config.Env), img.Config.User)
	}
	whole, err := s.Whole(t.Context(), img)
	must(t, err)
	if !slices.Equal(whole.Config.Env, env) || whole.Config.User != "app" || whole.ID != img.ID {
		t.Errorf("whole is %v", whole)
	}
	if again, err := s.Whole(t.Context(), whole); err != nil || again != whole {
		t.Errorf("once more: %v, %v", again, err)
	}
}

// A blob that is there as a layer is not read into memory as a configuration.
func TestLayerAsConfiguration(t *testing.T) {
	reg := newTestRegistry(t)
	big := static.NewLayer(make([]byte, 5<<20), types.OCIUncompressedLayer)
	h, err := big.Digest()
	must(t, err)
	img, err := mutate.AppendLayers(build(t, v1.Config{}), big)
	must(t, err)
	reg.push(t, "first:1", img)
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	pullImage(t, s, domain+"/first:1")

	text, err := json.Marshal(imagespec.Manifest{
		MediaType: imagespec.MediaTypeImageManifest,
		Config:    imagespec.Descriptor{MediaType: imagespec.MediaTypeImageConfig, Digest: digest.Digest(h.String()), Size: 100},
	})
	must(t, err)
	reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", digest.FromBytes(text).String())
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		_, _ = w.Write(text)
		return true
	})
	if _, err := s.Pull(t.Context(), PullRequest{Ref: domain + "/second:1"}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "its descriptor says 100") {
		t.Errorf("pull: %v", err)
	}
}

func TestZstdWindows(t *testing.T) {
	compress := func(window int, body []byte) []byte {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
		must(t, err)
		_, err = z.Write(body)
		must(t, err)
		must(t, z.Close())
		return b.Bytes()
	}
	body := bytes.Repeat([]byte("berth"), 4<<20) // more than the smallest window
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0}, "skip"...)
	for name, c := range map[string]struct {
		text  []byte
		works bool
	}{
		"small":                {compress(1<<20, body), true},
		"usual":                {compress(8<<20, body), true},
		"as large as may be":   {compress(32<<20, body), true},
		"larger":               {compress(64<<20, body), false},
		"after what is passed": {append(slices.Clone(skippable), compress(32<<20, body)...), true},
		"larger second frame":  {append(compress(1<<20, body), compress(32<<20, body)...), false},
	} {
		w := newWindows((bounds.Limits{}).Complete().MaxZstdWindow)
		for range 3 { // all memory comes back
			open, ok := decompressor(t.Context(), imagespec.MediaTypeImageLayerZstd)
			if !ok {
				t.Fatal("nobody opens zstd")
			}
			p, err := open(t.Context(), diff.NewProcessorChain("", bytes.NewReader(c.text)), payloads{decompression: w})
			var n int64
			if err == nil {
				n, err = io.Copy(io.Discard, p)
				must(t, p.Close())
			}
			if c.works && (err != nil || n != int64(len(body))) || !c.works && !bounds.IsBeyond(err) {
				t.Errorf("%s: %d bytes, %v", name, n, err)
			}
		}
		if !w.budget.TryAcquire(w.max) {
			t.Errorf("%s: some memory is still taken", name)
		}
	}
}

// A layer may be elsewhere than on the registry, if its type says so.
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
		manifest, err := img.Manifest()
		must(t, err)
		manifest = manifest.DeepCopy()
		manifest.Layers[0].MediaType = mediaType
		manifest.Layers[0].URLs = []string{elsewhere.URL + "/" + string(mediaType)}
		text, err := json.Marshal(manifest)
		must(t, err)
		reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(text).String())
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			_, _ = w.Write(text)
			return true
		})
		s := openStore(t, Config{HostsDir: reg.hosts(t)})
		pullImage(t, s, domain+"/app:1")
		if asked := strings.Contains(elsewhere.text(), string(mediaType)); asked != want {
			t.Errorf("%s: elsewhere was asked: %v", mediaType, asked)
		}
	}
}

func TestWorkerOutlivesPanic(t *testing.T) {
	w := newWorker()
	runs := 0
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.run(ctx, func(context.Context) {
			if runs++; runs == 1 {
				panic("first")
			}
		})
	}()
	<-w.request()
	<-w.request()
	stop()
	<-ended
	if runs != 2 {
		t.Errorf("%d runs", runs)
	}
}

// What an image says about its layers to snapshotters does not reach those of this node:
// it could name a layer below that never comes, or that is another image's.
func TestImageNamesTheLayerBelow(t *testing.T) {
	reg := newTestRegistry(t)
	bottom := layer(t, file{name: "no/such/directory/file"})
	diffID, err := bottom.DiffID()
	must(t, err)
	img, err := mutate.Append(build(t, v1.Config{}), mutate.Addendum{Layer: bottom, Annotations: map[string]string{
		parentLabel: diffID.String(), "containerd.io/snapshot/max-size": "1",
	}})
	must(t, err)
	reg.push(t, "app:1", img)
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	pulled, err := s.Pull(ctx, PullRequest{Ref: domain + "/app:1"})
	must(t, err)
	info, err := s.files.layers[Overlayfs].Stat(inNamespace(t.Context()), pulled.ChainID.String())
	must(t, err)
	for name := range info.Labels {
		if strings.HasPrefix(name, snapshotPrefix) && name != snapshots.LabelSnapshotDiffID {
			t.Errorf("the layer has label %s of the image", name)
		}
	}
}
