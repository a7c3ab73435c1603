package image

import (
	"context"

	"github.com/containerd/log"
)

// Remove drops the image that ref finds, with all its names, and frees what
// nothing else needs; layers that a container runs on stay until it is gone. An
// image that is not there is no error. When it returns the image is in no list;
// the space is free too, unless ctx ended first.
func (s *Store) Remove(ctx context.Context, ref string) error {
	ctx = inNamespace(ctx)
	img, err := s.catalog.forget(ctx, ref)
	if err != nil || img == nil {
		return err
	}
	log.G(ctx).WithFields(log.Fields{"image": img.ID, "tags": img.RepoTags}).Info("Image removed")
	select {
	case <-s.work.collector.request():
	case <-ctx.Done():
	}
	return nil
}
