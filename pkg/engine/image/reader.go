package image

import (
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"golang.org/x/sync/semaphore"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// reader reads the documents that describe images, and checks them.
type reader struct {
	content   content.Store
	limits    bounds.Limits
	documents documents
}

// isDocument reports whether content of a media type is read as a whole.
func isDocument(mediaType string) bool {
	return images.IsConfigType(mediaType) || images.IsManifestType(mediaType) || images.IsIndexType(mediaType)
}

func newReader(c content.Store, limits bounds.Limits) *reader {
	return &reader{content: c, limits: limits, documents: documents{semaphore.NewWeighted(documentBudget)}}
}
