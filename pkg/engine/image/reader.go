package image

import (
	"github.com/containerd/containerd/v2/core/content"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// reader reads the documents that describe images, and checks them.
type reader struct {
	content   content.Store
	limits    bounds.Limits
	documents documents
}

func newReader(c content.Store, limits bounds.Limits) *reader {
	return &reader{content: c, limits: limits, documents: newDocuments()}
}
