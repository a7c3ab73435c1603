package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// recover brings the store from what is on disk to a state that can serve: what
// killed pulls left is collected first, then memory is filled.
func (s *Store) recover(ctx context.Context) error {
	if err := s.dropLeases(ctx); err != nil {
		return err
	}
	if err := s.dropDownloads(); err != nil {
		return err
	}
	if err := s.loadImages(ctx); err != nil {
		return err
	}
	if err := s.loadViews(ctx); err != nil {
		return err
	}
	return s.measureStored(ctx)
}

// dropLeases ends the leases of pulls that did not end them themselves, and
// collects what they held. Nobody can take half a pull for a whole one after it.
func (s *Store) dropLeases(ctx context.Context) error {
	left, err := s.leases.List(ctx)
	if err != nil || len(left) == 0 {
		return err
	}
	for _, l := range left {
		if err := s.leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	log.G(ctx).WithField("pulls", len(left)).Info("Cleaning up after interrupted pulls")
	if _, err := s.db.GarbageCollect(ctx); err != nil {
		return fmt.Errorf("remove interrupted pulls: %w", err)
	}
	return nil
}

// dropDownloads removes what pulls were writing: none of them is under way. A
// download that began on a full disk is not in the metadata, and no collection
// would find it.
func (s *Store) dropDownloads() error {
	ingest := s.path("content", "ingest")
	entries, err := os.ReadDir(ingest)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list unfinished downloads: %w", err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(ingest, e.Name())); err != nil {
			return fmt.Errorf("remove an unfinished download: %w", err)
		}
	}
	return nil
}

// loadImages fills the index. A record whose content is damaged is removed, so
// that the kubelet pulls the image again. An image that would take too much memory
// is whole: it stays, and can be removed.
func (s *Store) loadImages(ctx context.Context) error {
	records, err := s.images.List(ctx)
	if err != nil {
		return err
	}
	damaged := false
	for _, rec := range records {
		img, err := s.load(ctx, rec.Target)
		if isBeyond(err) {
			log.G(ctx).WithError(err).WithField("image", rec.Name).Warn("Image takes too much memory and cannot be used; remove it to free its disk space")
			img, err = s.unusable(ctx, rec.Target, err)
		}
		if err != nil {
			log.G(ctx).WithError(err).WithField("image", rec.Name).Warn("Removing damaged image")
			if err := s.images.Delete(ctx, rec.Name, images.DeleteTarget(&rec.Target)); err != nil {
				return err
			}
			damaged = true
			continue
		}
		s.index.put(img, rec.Target.Digest, rec.Name)
	}
	if damaged {
		// The next pull must not find the metadata of content that is not there.
		_, err = s.db.GarbageCollect(ctx)
	}
	return err
}

// loadViews remembers which views there are.
func (s *Store) loadViews(ctx context.Context) error {
	for name, l := range s.layers {
		if l.broken != nil {
			continue
		}
		err := l.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
			if info.Kind != snapshots.KindView || !strings.HasPrefix(info.Name, viewPrefix) {
				return nil
			}
			v, err := s.readView(ctx, l, info.Name)
			if err != nil {
				return err
			}
			s.views.put(viewKey{snapshotter: name, chain: chainOfView(info.Name)}, v)
			return nil
		})
		if err != nil {
			return fmt.Errorf("snapshotter %s: %w", name, err)
		}
	}
	return nil
}
