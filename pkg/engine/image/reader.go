package image

import (
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/platforms"
)

// reader reads the documents that describe images, and checks them.
type reader struct {
	content  content.Store
	limits   Limits
	platform platforms.MatchComparer
	budget   *budget
}

func newReader(c content.Store, limits Limits) *reader {
	return &reader{content: c, limits: limits, platform: platforms.Default(), budget: newBudget()}
}
