package ociimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tarOf has files by name and text, one after the other.
func tarOf(t *testing.T, files ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: files[i], Mode: 0o600, Size: int64(len(files[i+1]))}))
		_, err := io.WriteString(w, files[i+1])
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func written(t *testing.T, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.tar")
	must(t, os.WriteFile(path, text, 0o600))
	return path
}

const said = `{"name":"main","rootfsImageRef":"x@sha256:1","checkpointedTime":"2026-11-25T22:00:00.5Z"}`

func TestArchive(t *testing.T) {
	plain := append(tarOf(t, "./config.dump", said, "spec.dump", "{}", "checkpoint/pages-1.img", "memory"), make([]byte, 5000)...)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(plain)
	must(t, errors.Join(err, z.Close()))
	for name, c := range map[string]struct {
		archive   []byte
		mediaType string
	}{
		"plain":      {plain, imagespec.MediaTypeImageLayer},
		"compressed": {packed.Bytes(), imagespec.MediaTypeImageLayerGzip},
	} {
		t.Run(name, func(t *testing.T) {
			i, err := Of(t.Context(), written(t, c.archive))
			must(t, err)
			if i.Container != "main" || i.Base != "x@sha256:1" {
				t.Errorf("it is of %q, which ran %q", i.Container, i.Base)
			}
			var out bytes.Buffer
			must(t, i.Archive(t.Context(), &out, "registry.test/x:1"))
			files := map[string][]byte{}
			for r := tar.NewReader(&out); ; {
				h, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				must(t, err)
				files[h.Name], err = io.ReadAll(r)
				must(t, err)
			}
			var index imagespec.Index
			must(t, json.Unmarshal(files["index.json"], &index))
			blob := func(d imagespec.Descriptor) []byte {
				t.Helper()
				text := files["blobs/sha256/"+d.Digest.Encoded()]
				if d.Digest != digest.FromBytes(text) || d.Size != int64(len(text)) {
					t.Errorf("blob %s of %s is not there", d.Digest, d.MediaType)
				}
				return text
			}
			var manifest imagespec.Manifest
			must(t, json.Unmarshal(blob(index.Manifests[0]), &manifest))
			if index.Manifests[0].Digest != i.Digest() || index.Manifests[0].Annotations["io.containerd.image.name"] != "registry.test/x:1" {
				t.Errorf("the index has %+v", index.Manifests)
			}
			for _, key := range []string{"org.criu.checkpoint.container.name", "io.kubernetes.cri-o.annotations.checkpoint.name"} {
				if manifest.Annotations[key] != "main" {
					t.Errorf("annotation %s is %q", key, manifest.Annotations[key])
				}
			}
			if manifest.Layers[0].MediaType != c.mediaType || !bytes.Equal(blob(manifest.Layers[0]), c.archive) {
				t.Errorf("the layer is %+v", manifest.Layers)
			}
			var config imagespec.Image
			must(t, json.Unmarshal(blob(manifest.Config), &config))
			if len(config.RootFS.DiffIDs) != 1 || config.RootFS.DiffIDs[0] != digest.FromBytes(plain) {
				t.Errorf("the configuration says %+v", config.RootFS)
			}
		})
	}
}

func TestNoArchive(t *testing.T) {
	for name, text := range map[string][]byte{
		"empty":             nil,
		"no tar":            bytes.Repeat([]byte("x"), 2000),
		"cut off":           tarOf(t, "config.dump", said, "spec.dump", "{}", "checkpoint/a", "x")[:700],
		"no memory":         tarOf(t, "config.dump", said, "spec.dump", "{}"),
		"no spec":           tarOf(t, "config.dump", said, "checkpoint/a", "x"),
		"no configuration":  tarOf(t, "spec.dump", "{}", "checkpoint/a", "x"),
		"without a name":    tarOf(t, "config.dump", "{}", "spec.dump", "{}", "checkpoint/a", "x"),
		"of something else": tarOf(t, "config.dump", "[]", "spec.dump", "{}", "checkpoint/a", "x"),
		"too large":         tarOf(t, "config.dump", `{"name":"`+strings.Repeat("x", maxConfig)+`"}`, "spec.dump", "{}", "checkpoint/a", "x"),
	} {
		if i, err := Of(t.Context(), written(t, text)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, %v", name, i, err)
		}
	}
	if _, err := Of(t.Context(), t.TempDir()); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a directory: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Of(ctx, written(t, tarOf(t, "config.dump", said))); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestChangedMeanwhile has the archive shrink before it is carried.
func TestChangedMeanwhile(t *testing.T) {
	path := written(t, tarOf(t, "config.dump", said, "spec.dump", "{}", "checkpoint/a", "x"))
	i, err := Of(t.Context(), path)
	must(t, err)
	must(t, os.Truncate(path, 100))
	if err := i.Archive(t.Context(), io.Discard, "x"); !errdefs.IsUnavailable(err) {
		t.Errorf("the answer is %v", err)
	}
}
