// Package ociimage makes OCI images of archives of checkpointed containers. berth, CRI-O and
// containerd know them by their annotations, and let a container of such an image go on where
// it was.
//
//	img, err := ociimage.Of(ctx, "/var/lib/kubelet/checkpoints/checkpoint-….tar")
//	err = img.Archive(ctx, w, "registry.example/team/notebook:warm")
//	err = img.Push(ctx, "registry.example/team/notebook:warm", registry)
//
// The archive is the one layer of the image as it is. It holds every secret that the container
// had in memory.
package ociimage

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/artifact"
	"github.com/berth-cri/berth/pkg/engine/wanted"
)

// maxConfig bounds what an archive says of its container.
const maxConfig = 1 << 20

// Image is the image of an archive.
type Image struct {
	// Container is the name of the container, Base the image that it ran.
	Container, Base string

	archive          string
	layer            imagespec.Descriptor
	config, manifest part
}

// part is a document of an image.
type part struct {
	imagespec.Descriptor
	text []byte
}

func encode(mediaType string, v any) (part, error) {
	text, err := json.Marshal(v)
	return part{imagespec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}, text}, err
}

// Of reads an archive, compressed or not, as a whole. errdefs.ErrInvalidArgument for what is
// not one of a checkpoint.
func Of(ctx context.Context, archive string) (*Image, error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file: %w", archive, errors.Join(err, errdefs.ErrInvalidArgument))
	}
	i := &Image{archive: archive}
	diffID, said, err := i.read(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", archive, err)
	}
	if err := i.describe(diffID, said); err != nil {
		return nil, err
	}
	return i, nil
}

// read fills in the layer, and returns the digest of what is in it uncompressed, with what
// that says of the container.
func (i *Image) read(ctx context.Context, f io.Reader) (digest.Digest, *metadata.ContainerConfig, error) {
	packed := digest.Canonical.Digester()
	counted := &counter{from: wanted.Reader(ctx, f)}
	stored := io.TeeReader(counted, packed.Hash())
	plain, err := compression.DecompressStream(stored)
	if err != nil {
		return "", nil, err
	}
	defer plain.Close()
	i.layer.MediaType = layerType(plain.GetCompression())
	diff := digest.Canonical.Digester()
	all := io.TeeReader(plain, diff.Hash())
	said, err := look(all)
	if err != nil {
		return "", nil, err
	}
	// What is behind the end of the archive belongs to the layer, too.
	for _, rest := range []io.Reader{all, stored} {
		if _, err := io.Copy(io.Discard, rest); err != nil {
			return "", nil, err
		}
	}
	i.layer.Digest, i.layer.Size = packed.Digest(), counted.n
	return diff.Digest(), said, nil
}

func layerType(c compression.Compression) string {
	switch c {
	case compression.Gzip:
		return imagespec.MediaTypeImageLayerGzip
	case compression.Zstd:
		return imagespec.MediaTypeImageLayerZstd
	}
	return imagespec.MediaTypeImageLayer
}

// counter counts what is read.
type counter struct {
	from io.Reader
	n    int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}

// look reads an archive as far as it goes.
func look(archive io.Reader) (said *metadata.ContainerConfig, err error) {
	has := map[string]bool{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("not an archive of a checkpoint: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		name := path.Clean(strings.TrimLeft(h.Name, "/"))
		for _, part := range []string{name, path.Dir(name)} {
			has[part] = has[part] || part == metadata.SpecDumpFile || part == metadata.CheckpointDirectory
		}
		if name != metadata.ConfigDumpFile {
			continue
		}
		said = &metadata.ContainerConfig{}
		if err := json.NewDecoder(io.LimitReader(r, maxConfig)).Decode(said); err != nil {
			return nil, fmt.Errorf("not an archive of a checkpoint: %s: %w: %w", metadata.ConfigDumpFile, err, errdefs.ErrInvalidArgument)
		}
	}
	switch {
	case said == nil || !has[metadata.SpecDumpFile] || !has[metadata.CheckpointDirectory]:
		return nil, fmt.Errorf("not an archive of a checkpoint: it needs %s, %s and %s/: %w",
			metadata.ConfigDumpFile, metadata.SpecDumpFile, metadata.CheckpointDirectory, errdefs.ErrInvalidArgument)
	case said.Name == "":
		return nil, fmt.Errorf("%s does not name the container: %w", metadata.ConfigDumpFile, errdefs.ErrInvalidArgument)
	}
	return said, nil
}

// describe writes the documents of the image.
func (i *Image) describe(diffID digest.Digest, said *metadata.ContainerConfig) (err error) {
	i.Container, i.Base = said.Name, said.RootfsImageRef
	created := said.CheckpointedAt.UTC().Truncate(time.Second) // so that the same archive is the same image
	i.config, err = encode(imagespec.MediaTypeImageConfig, imagespec.Image{
		Created: &created, Platform: imagespec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		RootFS:  imagespec.RootFS{Type: "layers", DiffIDs: []digest.Digest{diffID}},
		History: []imagespec.History{{Created: &created, CreatedBy: "berth checkpoint image"}},
	})
	if err != nil {
		return err
	}
	i.manifest, err = encode(imagespec.MediaTypeImageManifest, imagespec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageManifest,
		Config: i.config.Descriptor, Layers: []imagespec.Descriptor{i.layer},
		Annotations: map[string]string{
			image.CheckpointOfCRIO: said.Name, image.CheckpointOfCRIU: said.Name,
			metadata.CheckpointAnnotationRootfsImageName: said.RootfsImageName, metadata.CheckpointAnnotationRuntimeName: said.OCIRuntime,
			metadata.CheckpointAnnotationEngine: "berth", imagespec.AnnotationCreated: created.Format(time.RFC3339),
		},
	})
	return err
}

// blobs are what the image consists of, the manifest last.
func (i *Image) blobs() []artifact.Blob {
	document := func(name string, p part) artifact.Blob {
		return artifact.Blob{Name: name, Descriptor: p.Descriptor, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p.text)), nil }}
	}
	layer := artifact.Blob{Name: path.Base(i.archive), Descriptor: i.layer, Open: func() (io.ReadCloser, error) { return os.Open(i.archive) }}
	return []artifact.Blob{layer, document("configuration", i.config), document("manifest", i.manifest)}
}

// Digest is that of the image's manifest.
func (i *Image) Digest() digest.Digest { return i.manifest.Digest }

// Push sends the image to a registry, under ref.
func (i *Image) Push(ctx context.Context, ref string, to artifact.Registry) error {
	return to.Send(ctx, ref, i.blobs())
}

// Archive writes the image as an OCI layout in a tar file, in which it has a name.
func (i *Image) Archive(ctx context.Context, to io.Writer, name string) error {
	w := tar.NewWriter(to)
	top := i.manifest.Descriptor
	top.Annotations = map[string]string{images.AnnotationImageName: name, imagespec.AnnotationRefName: name}
	index, err := encode(imagespec.MediaTypeImageIndex, imagespec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imagespec.MediaTypeImageIndex, Manifests: []imagespec.Descriptor{top},
	})
	if err != nil {
		return err
	}
	layout, err := encode("", imagespec.ImageLayout{Version: imagespec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	for _, b := range i.blobs() {
		if err := file(ctx, w, path.Join(imagespec.ImageBlobsDir, b.Digest.Algorithm().String(), b.Digest.Encoded()), b.Size, b.Open); err != nil {
			return err
		}
	}
	for name, p := range map[string]part{imagespec.ImageLayoutFile: layout, imagespec.ImageIndexFile: index} {
		if err := file(ctx, w, name, p.Size, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p.text)), nil }); err != nil {
			return err
		}
	}
	return w.Close()
}

func file(ctx context.Context, to *tar.Writer, name string, size int64, open func() (io.ReadCloser, error)) error {
	if err := to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600}); err != nil {
		return err
	}
	from, err := open()
	if err != nil {
		return err
	}
	defer from.Close()
	n, err := io.Copy(to, wanted.Reader(ctx, from))
	if err == nil && n != size {
		err = fmt.Errorf("%s was changed meanwhile: %w", name, errdefs.ErrUnavailable)
	}
	return err
}
