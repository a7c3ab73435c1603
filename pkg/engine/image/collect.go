package image

import (
	"context"
	"os"

	"github.com/containerd/log"
)

// startWorkers starts the background work, which ends with Close.
func (s *Store) startWorkers(ctx context.Context) {
	ctx, s.stop = context.WithCancel(s.context(ctx))
	s.collector, s.sweeper, s.counter = newWorker(), newWorker(), newWorker()
	s.measurer = newMeasurer(s.usageOf)
	s.wg.Go(func() { s.collector.run(ctx, s.collect) })
	s.wg.Go(func() { s.sweeper.run(ctx, s.sweep) })
	s.wg.Go(func() { s.counter.run(ctx, s.count) })
	s.wg.Go(func() { s.measurer.run(ctx) })
	s.sweeper.kick()
}

// collect frees what no image and no container needs, and counts what is left.
func (s *Store) collect(ctx context.Context) {
	s.dropIdleViews(ctx)
	if _, err := s.db.GarbageCollect(ctx); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Warn("Failed to collect unused image data")
	}
	s.count(ctx)
}

// count brings the figures for ImageFsInfo up to date.
func (s *Store) count(ctx context.Context) {
	if err := s.measureStored(ctx); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Warn("Failed to measure disk usage of images")
	}
}

// sweep deletes the writable layers that were thrown away.
func (s *Store) sweep(ctx context.Context) {
	entries, err := os.ReadDir(s.path(trashDir))
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to list discarded writable layers")
		return
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return
		}
		if err := os.RemoveAll(s.path(trashDir, e.Name())); err != nil {
			log.G(ctx).WithError(err).WithField("entry", e.Name()).Warn("Failed to delete discarded writable layer")
		}
	}
}
