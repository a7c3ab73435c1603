package catalog

import (
	"bytes"
	"context"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// Reader reads the documents that describe images, and checks them.
type Reader struct {
	content content.Store
	Limits  bounds.Limits
	// parsing limits the memory for documents of all pulls of a store. It is never held during
	// network I/O.
	parsing *semaphore.Weighted
}

// IsDocument reports whether content of a media type is read as a whole.
func IsDocument(mediaType string) bool {
	return images.IsConfigType(mediaType) || images.IsManifestType(mediaType) || images.IsIndexType(mediaType)
}

// NewReader returns a reader of a content store.
func NewReader(c content.Store, limits bounds.Limits) *Reader {
	return &Reader{content: c, Limits: limits, parsing: semaphore.NewWeighted(documentBudget)}
}

// documentBudget is how many bytes of documents are parsed at the same time, over all pulls. A
// larger document gets all of it. Most have a few kilobytes.
const documentBudget = 4 << 20

// reserve waits for the memory to parse a document of size bytes. The caller calls done when it has
// dropped all but the result.
func (r *Reader) reserve(ctx context.Context, size int64) (done func(), err error) {
	size = min(max(size, 1), documentBudget)
	if err := r.parsing.Acquire(ctx, size); err != nil {
		return nil, err
	}
	return func() { r.parsing.Release(size) }, nil
}

// Children lists what a manifest or an index refers to, without fields that no code reads.
func (r *Reader) Children(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
	if !images.IsManifestType(desc.MediaType) && !images.IsIndexType(desc.MediaType) {
		return nil, nil
	}
	done, err := r.reserve(ctx, desc.Size)
	if err != nil {
		return nil, err
	}
	defer done()
	children, err := images.Children(ctx, r.content, desc)
	for i := range children {
		children[i] = lean(children[i])
	}
	return children, err
}

// snapshotPrefix begins the annotations of layers for snapshotters.
const snapshotPrefix = "containerd.io/snapshot/"

const (
	// EncryptedSuffix ends the media type of an encrypted layer. The type of the plain layer
	// precedes it.
	EncryptedSuffix = "+encrypted"
	// EncryptionPrefix begins the annotations of an encrypted layer that are read.
	EncryptionPrefix = "org.opencontainers.image.enc."
)

// lean returns a descriptor reduced to what a pull keeps.
func lean(desc imagespec.Descriptor) imagespec.Descriptor {
	kept := imagespec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size, URLs: desc.URLs, Platform: desc.Platform}
	for name, value := range desc.Annotations {
		encrypted := strings.HasSuffix(desc.MediaType, EncryptedSuffix) && strings.HasPrefix(name, EncryptionPrefix)
		// The configuration determines the layer below, not an annotation.
		if encrypted || strings.HasPrefix(name, snapshotPrefix) && name != disk.ParentLabel {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[name] = value
		}
	}
	return kept
}

// WithoutSnapshotAnnotations returns a lean descriptor for this node's own snapshotters, which
// images must not influence.
func WithoutSnapshotAnnotations(desc imagespec.Descriptor) imagespec.Descriptor {
	kept := map[string]string{}
	for name, value := range desc.Annotations {
		if !strings.HasPrefix(name, snapshotPrefix) {
			kept[name] = value
		}
	}
	desc.Annotations = kept
	return desc
}

func leanManifest(m imagespec.Manifest) imagespec.Manifest {
	kept := imagespec.Manifest{Versioned: m.Versioned, MediaType: m.MediaType, Config: lean(m.Config)}
	for _, layer := range m.Layers {
		kept.Layers = append(kept.Layers, lean(layer))
	}
	if isCheckpoint(m) {
		kept.Annotations = map[string]string{CheckpointOfCRIU: ""}
	}
	return kept
}

// attached is how many bytes of a manifest are kept during its pull, in addition to each layer's
// fixed size.
func attached(m imagespec.Manifest) (n int) {
	for _, layer := range m.Layers {
		for _, u := range layer.URLs {
			n += len(u)
		}
		for name, value := range lean(layer).Annotations {
			n += len(name) + len(value)
		}
	}
	return n
}

// InMemory is content that was read into memory.
type InMemory struct{ *bytes.Reader }

// Close implements content.ReaderAt.
func (InMemory) Close() error { return nil }

// boundedDocuments is a content store that applies the limits of pulls to documents.
type boundedDocuments struct {
	content.Store
	limits bounds.Limits
}

// Bounded returns the content store without the documents that are too large.
func (r *Reader) Bounded() content.Store { return boundedDocuments{r.content, r.Limits} }

func (b boundedDocuments) ReaderAt(ctx context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	if IsDocument(desc.MediaType) {
		if err := CheckDocument(b.limits, "document", desc); err != nil {
			return nil, err
		}
		text, err := content.ReadBlob(ctx, b.Store, desc)
		if err == nil {
			err = elements(text)
		}
		return InMemory{bytes.NewReader(text)}, err
	}
	return b.Store.ReaderAt(ctx, desc)
}
