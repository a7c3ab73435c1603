package faults

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	ocidigest "github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// hostile is a registry that serves any content and any response that a test sets.
type hostile struct {
	*httptest.Server
	// number is part of most contents, so that two registries do not serve the same blobs.
	number int

	mu sync.Mutex
	// blobs are contents by digest, including manifests.
	blobs map[ocidigest.Digest]content
	tags  map[string]imagespec.Descriptor
	// answers are handlers by a prefix of the path, which override blobs and tags.
	answers map[string]http.HandlerFunc
}

// content is a body that is generated while it is sent.
type content struct {
	size  int64
	write func(io.Writer) error
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{blobs: map[ocidigest.Digest]content{}, tags: map[string]imagespec.Descriptor{}, answers: map[string]http.HandlerFunc{}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return h
}

func (h *hostile) host() string { return strings.TrimPrefix(h.URL, "http://") }

// answer sets the handler for all paths with a prefix.
func (h *hostile) answer(prefix string, f http.HandlerFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers[prefix] = f
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	var f http.HandlerFunc
	for prefix, answer := range h.answers {
		if strings.HasPrefix(r.URL.Path, prefix) {
			f = answer
		}
	}
	parts := strings.Split(r.URL.Path, "/")
	name := parts[len(parts)-1]
	desc, tagged := h.tags[name]
	if !tagged {
		desc.Digest = ocidigest.Digest(name)
	}
	c, ok := h.blobs[desc.Digest]
	h.mu.Unlock()
	switch {
	case f != nil:
		f(w, r)
	case !ok:
		http.NotFound(w, r)
	default:
		if tagged {
			w.Header().Set("Content-Type", desc.MediaType)
		}
		w.Header().Set("Docker-Content-Digest", desc.Digest.String())
		w.Header().Set("Content-Length", fmt.Sprint(c.size))
		if r.Method == http.MethodGet {
			_ = c.write(w)
		}
	}
}

// put stores a content and returns its descriptor.
func (h *hostile) put(t *testing.T, mediaType string, write func(io.Writer) error) imagespec.Descriptor {
	t.Helper()
	sum := sha256.New()
	n := &byteCount{}
	testbed.Must(t, write(io.MultiWriter(sum, n)))
	d := ocidigest.NewDigestFromEncoded(ocidigest.SHA256, hex.EncodeToString(sum.Sum(nil)))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.blobs[d] = content{n.n, write}
	return imagespec.Descriptor{MediaType: mediaType, Digest: d, Size: n.n}
}

type byteCount struct{ n int64 }

func (c *byteCount) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func (h *hostile) putBytes(t *testing.T, mediaType string, b []byte) imagespec.Descriptor {
	t.Helper()
	return h.put(t, mediaType, func(w io.Writer) error { _, err := w.Write(b); return err })
}

func (h *hostile) putJSON(t *testing.T, mediaType string, v any) imagespec.Descriptor {
	t.Helper()
	b, err := json.Marshal(v)
	testbed.Must(t, err)
	return h.putBytes(t, mediaType, b)
}

// tag tags a manifest or an index, and returns the reference of the image.
func (h *hostile) tag(name string, desc imagespec.Descriptor) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tags[name] = desc
	return h.host() + "/hostile/app:" + name
}

// image tags an image of a configuration and layers, and returns its reference.
func (h *hostile) image(t *testing.T, name string, config imagespec.Descriptor, layers ...imagespec.Descriptor) string {
	t.Helper()
	return h.tag(name, h.manifest(t, config, layers...))
}

func (h *hostile) manifest(t *testing.T, config imagespec.Descriptor, layers ...imagespec.Descriptor) imagespec.Descriptor {
	t.Helper()
	return h.putJSON(t, imagespec.MediaTypeImageManifest, imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest, Config: config, Layers: layers,
	})
}

// config stores a configuration for layers with these diff IDs.
func (h *hostile) config(t *testing.T, change func(*imagespec.Image), diffIDs ...ocidigest.Digest) imagespec.Descriptor {
	t.Helper()
	i := imagespec.Image{Author: fmt.Sprint(h.number), Platform: imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH}}
	i.RootFS = imagespec.RootFS{Type: "layers", DiffIDs: diffIDs}
	if change != nil {
		change(&i)
	}
	return h.putJSON(t, imagespec.MediaTypeImageConfig, i)
}

// index stores an index of one manifest.
func (h *hostile) index(t *testing.T, of imagespec.Descriptor) imagespec.Descriptor {
	t.Helper()
	of.Platform = &imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	return h.putJSON(t, imagespec.MediaTypeImageIndex, imagespec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex, Manifests: []imagespec.Descriptor{of},
	})
}

// padded returns a function that writes head, n bytes of repeated filler, and tail.
func padded(head string, n int64, filler, tail string) func(io.Writer) error {
	chunk := []byte(strings.Repeat(filler, 1<<18/len(filler)))
	return func(w io.Writer) error {
		if _, err := io.WriteString(w, head); err != nil {
			return err
		}
		for left := n; left > 0; left -= int64(len(chunk)) {
			if _, err := w.Write(chunk[:min(left, int64(len(chunk)))]); err != nil {
				return err
			}
		}
		_, err := io.WriteString(w, tail)
		return err
	}
}

// emptyTar returns an empty archive, compressed, and the digest of the uncompressed archive.
func emptyTar(t *testing.T) ([]byte, ocidigest.Digest) {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(make([]byte, 1024)); err != nil {
		t.Fatal(err)
	}
	testbed.Must(t, z.Close())
	return b.Bytes(), ocidigest.FromBytes(make([]byte, 1024))
}

// wideZstd is a layer of zeros whose decompression needs a window of 512 MiB.
func wideZstd(t *testing.T) ([]byte, ocidigest.Digest) {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithWindowSize(zstd.MaxWindowSize), zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(false))
	testbed.Must(t, err)
	sum := sha256.New()
	testbed.Must(t, padded("", 600<<20, "\x00", "")(io.MultiWriter(z, sum)))
	testbed.Must(t, z.Close())
	return b.Bytes(), ocidigest.NewDigestFromEncoded(ocidigest.SHA256, hex.EncodeToString(sum.Sum(nil)))
}

// drip sends a byte every 20 milliseconds until the client disconnects.
func drip(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
	flush := http.NewResponseController(w)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		if _, err := io.WriteString(w, " "); err != nil || flush.Flush() != nil {
			return
		}
	}
}
