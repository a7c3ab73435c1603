package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/containerd/log"
)

// recover brings the store from what is on disk to a state that can serve: what
// killed pulls left is kept or collected first, then memory is filled.
func (s *Store) recover(ctx context.Context) error {
	if err := s.interrupted.recover(ctx); err != nil {
		return err
	}
	if err := s.files.flusher.recover(maps.Keys(s.files.layers)); err != nil {
		return err
	}
	var asked sync.WaitGroup
	for name, l := range s.files.layers {
		if l.proxied != nil {
			l.proxied.catchUp = func(ctx context.Context) error { return s.catchUp(ctx, name, l) }
			asked.Go(func() { l.proxied.check(ctx, 1, proxiedStart) })
		} else if l.broken == nil {
			if err := errors.Join(s.files.dropForgotten(ctx, name, l), s.files.dropLost(ctx, name, l)); err != nil {
				return fmt.Errorf("snapshotter %s: %w", name, err)
			}
		}
	}
	if err := s.catalog.load(ctx); err != nil {
		return err
	}
	for name, l := range s.files.layers {
		if l.proxied == nil && l.broken == nil {
			if err := s.views.load(ctx, name, l); err != nil {
				return fmt.Errorf("snapshotter %s: %w", name, err)
			}
		}
	}
	asked.Wait()
	return s.measureStored(ctx)
}

// catchUp does, for the snapshotter of another program that answers again, what was to be
// done when it did not. Nobody else calls that one meanwhile.
func (s *Store) catchUp(ctx context.Context, name string, l *layers) error {
	if !l.proxied.hasAnswered() {
		if err := l.dropHalf(ctx); err != nil {
			return fmt.Errorf("remove half unpacked layers: %w", err)
		}
	}
	if err := s.files.dropLost(ctx, name, l); err != nil {
		return err
	}
	if err := s.views.load(ctx, name, l); err != nil {
		return err
	}
	if err := s.rootfses.dropOrphansLate(ctx, l, name); err != nil {
		log.G(ctx).WithError(err).WithField("snapshotter", name).Warn("Failed to remove root filesystems that belong to no container; the next start will retry")
	}
	if err := l.haveCollected(ctx); err != nil {
		return fmt.Errorf("collect what was removed meanwhile: %w", err)
	}
	s.work.collector.kick()
	return nil
}
