package image

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
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

// collect frees unreferenced content and layers, and measures the rest.
func (s *Store) collect(ctx context.Context) {
	s.views.DropIdle(ctx)
	if s.cfg.DiscardLayers {
		// Without their compressed content, the unpacked layers are the only copy: they must be on
		// disk.
		if err := s.files.Flusher.Flushed(ctx); err != nil {
			log.G(ctx).WithError(err).Error("Failed to flush unpacked layers; unreferenced data is kept until the next collection")
			return
		}
	}
	if _, err := s.files.DB.GarbageCollect(ctx); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Warn("Failed to collect unused image data")
	}
	s.count(ctx)
}

// count updates the figures for ImageFsInfo.
func (s *Store) count(ctx context.Context) {
	if err := s.Meter.MeasureStored(ctx); err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).Warn("Failed to measure disk usage of images")
	}
}

// endClients starts a collection whenever a client's lease has expired, until ctx ends.
func (s *Store) endClients(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, 10*time.Minute, false, func(ctx context.Context) (bool, error) {
		all, err := s.files.Leases.List(ctx)
		if err != nil {
			log.G(ctx).WithError(err).Warn("Failed to list leases")
		}
		if slices.ContainsFunc(all, func(l leases.Lease) bool { return disk.IsClientLease(l) && disk.IsExpired(l, time.Now()) }) {
			s.views.Work.Collector.Kick()
		}
		return false, nil
	})
}

// Remove removes the image that ref finds, with all its names. It frees what only this image used,
// and the leftovers of interrupted pulls; layers that a container runs on stay as long as the
// container. A missing image is not an error. On return the image is in no list. Its space is freed
// in the background. On a nearly full filesystem, Remove waits until the space is free or ctx ends:
// a kubelet checks the space right after a removal, and may evict pods.
func (s *Store) Remove(ctx context.Context, ref string) error {
	ctx = disk.InNamespace(ctx)
	s.puller.Interrupted.Drop(ctx)
	gone, err := s.catalog.Forget(ctx, ref)
	if err != nil || gone == nil {
		return err
	}
	log.G(ctx).WithFields(log.Fields{"image": gone.ID, "tags": gone.RepoTags}).Info("Image removed")
	collected := s.views.Work.Collector.Request()
	if !s.nearlyFull(s.files.Root) {
		return nil
	}
	select {
	case <-collected:
	case <-ctx.Done():
	}
	return nil
}

// Free space for images, in percent. By default, kubelets evict pods below kubeletMargin;
// evictionMargin is above it.
const kubeletMargin, evictionMargin = 15, 20

// nearlyFull reports whether a kubelet may be about to evict pods.
func nearlyFull(root string) bool { return lessFree(root, evictionMargin) }

// makeRoom drops the leftovers of interrupted pulls, and unfinished writes and old leases of
// clients, if a kubelet would by default evict pods.
func (s *Store) makeRoom(ctx context.Context) {
	if lessFree(s.files.Root, kubeletMargin) {
		ctx = disk.InNamespace(ctx)
		s.puller.Interrupted.Drop(ctx)
		s.files.DropClientWrites(ctx)
		before := time.Now().Add(-disk.ClientLeaseGrace)
		if lessFree(s.files.Root, disk.ClientLeaseMargin) {
			before = time.Now()
		}
		if s.files.DropClientLeases(ctx, before) > 0 {
			s.views.Work.Collector.Kick()
		}
	}
}

// lessFree reports whether a smaller percentage of space or inodes is free, or it is unknown.
func lessFree(root string, percent uint64) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return true
	}
	return scarce(st.Bavail, st.Blocks, percent) || scarce(st.Ffree, st.Files, percent)
}

// scarce is false for a filesystem that reports no inodes.
func scarce(free, all, percent uint64) bool { return free < all/100*percent }
