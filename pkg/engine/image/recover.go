package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// recover makes the opened store usable: leftovers of killed pulls are kept or collected first,
// then the indexes in memory are filled.
func (s *Store) recover(ctx context.Context) error {
	if err := s.puller.Interrupted.Recover(ctx); err != nil {
		return err
	}
	if err := s.files.Flusher.Recover(maps.Keys(s.files.Layers)); err != nil {
		return err
	}
	var asked sync.WaitGroup
	for name, l := range s.files.Layers {
		if l.Proxied != nil {
			l.Proxied.CatchUp = func(ctx context.Context) error { return s.catchUp(ctx, l) }
			asked.Go(func() { l.Proxied.Check(ctx, 1, disk.ProxiedStart) })
		} else if l.Broken == nil {
			if err := errors.Join(s.files.DropForgotten(ctx, l), s.files.DropLost(ctx, l)); err != nil {
				return fmt.Errorf("snapshotter %s: %w", name, err)
			}
		}
	}
	if err := s.catalog.Load(ctx); err != nil {
		return err
	}
	for name, l := range s.files.Layers {
		if l.Proxied == nil && l.Broken == nil {
			if err := s.views.Load(ctx, l); err != nil {
				return fmt.Errorf("snapshotter %s: %w", name, err)
			}
		}
	}
	asked.Wait()
	return s.Meter.MeasureStored(ctx)
}

// catchUp does the pending recovery of a proxy snapshotter that answers again. Other calls to the
// snapshotter fail until catchUp has ended.
func (s *Store) catchUp(ctx context.Context, l *disk.Layers) error {
	if !l.Proxied.HasAnswered() {
		if err := l.DropPartial(ctx); err != nil {
			return fmt.Errorf("remove partially unpacked layers: %w", err)
		}
	}
	if err := s.files.DropLost(ctx, l); err != nil {
		return err
	}
	if err := s.views.Load(ctx, l); err != nil {
		return err
	}
	if err := s.Roots.DropOrphansLate(ctx, l); err != nil {
		log.G(ctx).WithError(err).WithField("snapshotter", l.Name).Warn("Failed to remove root filesystems that belong to no container; the next start will retry")
	}
	if err := l.MarkForCollection(ctx); err != nil {
		return fmt.Errorf("collect removed snapshots: %w", err)
	}
	s.views.Work.Collector.Kick()
	return nil
}
