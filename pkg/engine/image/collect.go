package image

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/log"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// startWorkers starts the background work, which ends with Close.
func (s *Store) startWorkers(ctx context.Context) {
	ctx, s.stop = context.WithCancel(disk.InNamespace(ctx))
	s.wg.Go(func() { s.views.Work.Collector.Run(ctx, s.collect) })
	s.wg.Go(func() { s.files.Flusher.Work.Run(ctx, s.files.Flusher.Flush) })
	s.wg.Go(func() { s.Roots.Run(ctx) })
	s.wg.Go(func() { s.views.Work.Counter.Run(ctx, s.count) })
	s.wg.Go(func() { s.Meter.Run(ctx) })
	s.wg.Go(func() { s.puller.Interrupted.Run(ctx) })
	s.wg.Go(func() { s.endClients(ctx) })
	for _, l := range s.files.Layers {
		if l.Proxied != nil {
			s.wg.Go(func() { l.Proxied.Watch(ctx) })
		}
	}
	s.wg.Go(func() { s.Preload(ctx, s.cfg.PreloadDir) })
}

// collect frees what no image and no container needs, and counts what is left.
func (s *Store) collect(ctx context.Context) {
	s.views.DropIdle(ctx)
	if s.cfg.DiscardLayers {
		// What they were unpacked into is then the only copy.
		if err := s.files.Flusher.Flushed(ctx); err != nil {
			log.G(ctx).WithError(err).Error("Failed to flush unpacked layers; what is not needed is kept until the next collection")
			return
		}
	}
	if _, err := s.files.DB.GarbageCollect(ctx); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Warn("Failed to collect unused image data")
	}
	s.count(ctx)
}

// count brings the figures for ImageFsInfo up to date.
func (s *Store) count(ctx context.Context) {
	if err := s.MeasureStored(ctx); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Warn("Failed to measure disk usage of images")
	}
}

// endClients ends what clients hold and whose time is up, until ctx ends.
func (s *Store) endClients(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, 10*time.Minute, false, func(ctx context.Context) (bool, error) {
		all, err := s.files.Leases.List(ctx)
		if err != nil {
			log.G(ctx).WithError(err).Warn("Failed to list leases")
		}
		if slices.ContainsFunc(all, func(l leases.Lease) bool { return disk.IsClientLease(l) && disk.IsOver(l, time.Now()) }) {
			s.views.Work.Collector.Kick()
		}
		return false, nil
	})
}
