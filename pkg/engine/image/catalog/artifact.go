package catalog

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// An artifact is anything that a manifest describes other than a container image: a model, a chart,
// files that ORAS packed. It can be the source of an image volume. Its blobs are the files of the
// volume; fileName names them.
const (
	modelPath, formerModelPath = "org.cncf.model.filepath", "org.cnai.model.filepath"
	// PackedDirectory is ORAS's annotation of a directory that it packed.
	PackedDirectory = "io.deis.oras.content.unpack"
)

// artifactChain begins the chain ID of an artifact; chain IDs of layers begin differently.
const artifactChain = "artifact-"

// maxFileName is the longest file name of Linux filesystems, maxFilePath the longest path of Linux
// system calls.
const maxFileName, maxFilePath = 255, 4095

// maxFileDepth bounds the directories above a file, since system calls walk all of them.
const maxFileDepth = 64

// ArtifactFile is a file, or an archive of files, in the volume of an artifact.
type ArtifactFile struct {
	Blob imagespec.Descriptor
	// Path is below the root of the volume. It is empty for an archive, which is unpacked there;
	// Blob then has the media type of a layer.
	Path string
}

// DescribesArtifact reports whether a manifest describes something other than a container image.
func DescribesArtifact(m imagespec.Manifest) bool { return !images.IsConfigType(m.Config.MediaType) }

// IsArtifact reports whether the chain of an image (Image.ChainID) is that of an artifact.
func IsArtifact(chain digest.Digest) bool { return strings.HasPrefix(string(chain), artifactChain) }

func artifactType(m imagespec.Manifest) string { return cmp.Or(m.ArtifactType, m.Config.MediaType) }

func newArtifact(desc imagespec.Descriptor, m imagespec.Manifest) *Image {
	return &Image{
		ID:           desc.Digest.String(),
		ChainID:      digest.Digest(artifactChain + desc.Digest.String()),
		Size:         sizeOf(desc, m),
		ArtifactType: artifactType(m),
		Manifest:     bare(desc),
	}
}

func checkArtifact(m imagespec.Manifest) error {
	if t := artifactType(m); t == "" || len(t) > MaxMediaType {
		return fmt.Errorf("artifact type %.100q is not valid: %w", t, errdefs.ErrInvalidArgument)
	}
	_, err := artifactFiles(m)
	return err
}

// artifactFiles returns the files of an artifact's volume. All paths are inside the volume, and no
// two conflict.
func artifactFiles(m imagespec.Manifest) ([]ArtifactFile, error) {
	var files []ArtifactFile
	names := 0
	isFile, isDir := map[string]bool{}, map[string]bool{}
	for _, blob := range m.Layers {
		if err := CheckDigest("a blob of the artifact", blob); err != nil {
			return nil, err
		}
		if blob.MediaType == imagespec.MediaTypeEmptyJSON {
			continue // a placeholder, not a file
		}
		if strings.HasSuffix(blob.MediaType, EncryptedSuffix) {
			return nil, fmt.Errorf("blob %s of the artifact is encrypted; berth decrypts only layers of container images: %w", blob.Digest, errdefs.ErrInvalidArgument)
		}
		if t := archiveType(blob); t != "" {
			files = append(files, ArtifactFile{Blob: imagespec.Descriptor{MediaType: t, Digest: blob.Digest, Size: blob.Size}})
			continue
		}
		name, err := fileName(blob)
		if err != nil {
			return nil, err
		}
		if isFile[name] || isDir[name] {
			return nil, fmt.Errorf("two blobs of the artifact are both called %.300q: %w", name, errdefs.ErrInvalidArgument)
		}
		isFile[name] = true
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if isFile[dir] {
				return nil, fmt.Errorf("a blob of the artifact is called %.300q and another is in a directory of that name: %w", dir, errdefs.ErrInvalidArgument)
			}
			isDir[dir] = true
		}
		if names += len(name); names > maxAttached {
			return nil, bounds.Beyond("files of the artifact have names of more than %d bytes", maxAttached)
		}
		files = append(files, ArtifactFile{Blob: bare(blob), Path: name})
	}
	return files, nil
}

// fileName returns the name of a blob in a volume, as a clean local path.
func fileName(blob imagespec.Descriptor) (string, error) {
	for _, key := range []string{imagespec.AnnotationTitle, modelPath, formerModelPath} {
		given := blob.Annotations[key]
		if given == "" {
			continue
		}
		name := path.Clean(given)
		if name == "." || !filepath.IsLocal(given) || strings.ContainsRune(given, 0) {
			return "", fmt.Errorf("blob %s of the artifact is called %.300q, which is not a path inside of a volume: %w", blob.Digest, given, errdefs.ErrInvalidArgument)
		}
		if len(name) > maxFilePath {
			return "", bounds.Beyond("a file of the artifact has a path of %d bytes; the limit is %d", len(name), maxFilePath)
		}
		if depth := strings.Count(name, "/"); depth > maxFileDepth {
			return "", bounds.Beyond("a file of the artifact is in %d directories; the limit is %d", depth, maxFileDepth)
		}
		for part := range strings.SplitSeq(name, "/") {
			if len(part) > maxFileName {
				return "", bounds.Beyond("a file of the artifact has a name of %d bytes; the limit is %d", len(part), maxFileName)
			}
		}
		return name, nil
	}
	return blob.Digest.Algorithm().String() + "-" + blob.Digest.Encoded(), nil
}

// archiveType returns the layer type of a blob that is unpacked into the volume. It is empty for
// other blobs, which become files.
func archiveType(blob imagespec.Descriptor) string {
	packed := blob.Annotations[PackedDirectory] == "true" ||
		strings.HasPrefix(blob.MediaType, "application/vnd.cncf.model.") || strings.HasPrefix(blob.MediaType, "application/vnd.cnai.model.")
	if !packed {
		return ""
	}
	for _, t := range []string{imagespec.MediaTypeImageLayer, imagespec.MediaTypeImageLayerGzip, imagespec.MediaTypeImageLayerZstd} {
		if strings.HasSuffix(blob.MediaType, strings.TrimPrefix(t, "application/vnd.oci.image.layer.v1")) {
			return t
		}
	}
	return ""
}

// ArtifactFiles returns the files of an artifact's volume.
func (r *Reader) ArtifactFiles(ctx context.Context, img *Image) (files []ArtifactFile, err error) {
	_, err = r.ReadManifest(ctx, img.Manifest, func(m imagespec.Manifest) error {
		files, err = artifactFiles(m)
		return err
	})
	return files, err
}

// Runnable returns an error if no container can run from the image.
func (i *Image) Runnable() error {
	if err := i.Usable(); err != nil {
		return err
	}
	if i.ArtifactType != "" && !IsWasm(i.Platform) {
		return i.notRunnable()
	}
	return nil
}

func (i *Image) notRunnable() error {
	return fmt.Errorf("image %s is an artifact of type %.100s and cannot be run; mount it as a volume with an image source: %w", i.ID, i.ArtifactType, errdefs.ErrFailedPrecondition)
}
