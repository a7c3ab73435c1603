package image

import (
	"bytes"
	"context"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// documentBudget is how many bytes of documents are parsed at the same time, so that
// those of several pulls do not add up. A larger one has it to itself. Usual ones have
// some kilobytes.
const documentBudget = 4 << 20

// documents is the memory for documents that all pulls of a store share. It is never
// held during network I/O.
type documents struct{ budget *semaphore.Weighted }

// begin waits until a document of so many bytes may be parsed. The caller calls done
// when it holds no more than what it keeps.
func (d documents) begin(ctx context.Context, size int64) (done func(), err error) {
	size = min(max(size, 1), documentBudget)
	if err := d.budget.Acquire(ctx, size); err != nil {
		return nil, err
	}
	return func() { d.budget.Release(size) }, nil
}

// children are what a manifest or an index lists, without what nobody reads.
func (r *reader) children(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
	if !images.IsManifestType(desc.MediaType) && !images.IsIndexType(desc.MediaType) {
		return nil, nil
	}
	done, err := r.documents.begin(ctx, desc.Size)
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

// snapshotPrefix begins the annotations of layers that are for snapshotters.
const snapshotPrefix = "containerd.io/snapshot/"

const (
	// encryptedSuffix ends the media type of an encrypted layer; before it is that of the
	// layer inside.
	encryptedSuffix = "+encrypted"
	// encryptionPrefix begins the annotations of an encrypted layer that are read.
	encryptionPrefix = "org.opencontainers.image.enc."
)

// lean is a descriptor that is kept for as long as a pull takes.
func lean(desc imagespec.Descriptor) imagespec.Descriptor {
	kept := imagespec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size, URLs: desc.URLs, Platform: desc.Platform}
	for name, value := range desc.Annotations {
		encrypted := strings.HasSuffix(desc.MediaType, encryptedSuffix) && strings.HasPrefix(name, encryptionPrefix)
		// Which layer is below is what the configuration says.
		if encrypted || strings.HasPrefix(name, snapshotPrefix) && name != parentLabel {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[name] = value
		}
	}
	return kept
}

// withoutSnapshotAnnotations is a lean descriptor for the snapshotters of this node, to
// which an image has nothing to say.
func withoutSnapshotAnnotations(desc imagespec.Descriptor) imagespec.Descriptor {
	kept := map[string]string{}
	for name, value := range desc.Annotations {
		if !strings.HasPrefix(name, snapshotPrefix) {
			kept[name] = value
		}
	}
	desc.Annotations = kept
	return desc
}

// leanManifest is a manifest without what nobody reads.
func leanManifest(m imagespec.Manifest) imagespec.Manifest {
	kept := imagespec.Manifest{Versioned: m.Versioned, MediaType: m.MediaType, Config: lean(m.Config)}
	for _, layer := range m.Layers {
		kept.Layers = append(kept.Layers, lean(layer))
	}
	if isCheckpoint(m) {
		kept.Annotations = map[string]string{checkpointOfCRIU: ""}
	}
	return kept
}

// attached is how many bytes of a manifest are kept for as long as its pull takes,
// beside what each layer has.
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

type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }

type boundedDocuments struct {
	content.Store
	limits bounds.Limits
}

func (b boundedDocuments) ReaderAt(ctx context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	if isDocument(desc.MediaType) {
		if err := checkDocument(b.limits, "document", desc); err != nil {
			return nil, err
		}
		text, err := content.ReadBlob(ctx, b.Store, desc)
		if err == nil {
			err = elements(text)
		}
		return inMemory{bytes.NewReader(text)}, err
	}
	return b.Store.ReaderAt(ctx, desc)
}
