package pull

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

const (
	// keptFor is how long the parts of an interrupted pull are kept for the next attempt: the
	// kubelet's longest pause between two attempts is five minutes.
	keptFor = time.Hour
	// keptPulls is how many interrupted pulls are kept; the oldest are dropped.
	keptPulls = 16

	// PullLabel on a lease is the key of its pull.
	PullLabel = "berth.dev/pull"
	// BootLabel on a lease is the ID of the boot that created it.
	BootLabel = "berth.dev/boot"
)

// interrupted keeps the content of each interrupted pull by a lease, for the next pull of the same
// image, unless the space is needed. The expiry of containerd's leases does not fit: it is fixed
// when the pull begins.
type interrupted struct {
	files     *disk.Files
	collector *disk.Worker

	mu   sync.Mutex
	kept []keptPull // the oldest first
}

type keptPull struct {
	key   string
	lease leases.Lease
	since time.Time
}

// lease returns the kept lease of an interrupted pull of the same image, or a new lease. keepsParts
// is true for a kept lease.
func (i *interrupted) lease(ctx context.Context, key string) (_ context.Context, l leases.Lease, keepsParts bool, err error) {
	if kept, ok := i.take(key); ok {
		log.G(ctx).Info("Resuming interrupted pull")
		return leases.WithLease(ctx, kept.ID), kept, true, nil
	}
	ctx, l, err = i.files.Lease(ctx, map[string]string{PullLabel: key, BootLabel: i.files.Flusher.Boot})
	return ctx, l, false, err
}

func (i *interrupted) take(key string) (leases.Lease, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := slices.IndexFunc(i.kept, func(k keptPull) bool { return k.key == key })
	if n < 0 {
		return leases.Lease{}, false
	}
	taken := i.kept[n].lease
	i.kept = slices.Delete(i.kept, n, n+1)
	return taken, true
}

func (i *interrupted) Keep(ctx context.Context, key string, l leases.Lease) {
	i.mu.Lock()
	i.kept = append(i.kept, keptPull{key: key, lease: l, since: time.Now()})
	i.mu.Unlock()
	i.dropOld(ctx, time.Now())
}

// dropOld drops pulls that were kept for keptFor, and the oldest beyond keptPulls.
func (i *interrupted) dropOld(ctx context.Context, now time.Time) {
	i.drop(ctx, func() int {
		n := max(0, len(i.kept)-keptPulls)
		for n < len(i.kept) && now.Sub(i.kept[n].since) >= keptFor {
			n++
		}
		return n
	})
}

// done drops what is kept of an image that is complete.
func (i *interrupted) done(ctx context.Context, key string) {
	if l, ok := i.take(key); ok {
		i.files.EndLease(ctx, l)
	}
}

// Drop drops everything that is kept.
func (i *interrupted) Drop(ctx context.Context) { i.drop(ctx, func() int { return len(i.kept) }) }

// drop drops the oldest pulls, as many as count returns. mu is held during count.
func (i *interrupted) drop(ctx context.Context, count func() int) {
	i.mu.Lock()
	n := count()
	old := i.kept[:n:n]
	i.kept = slices.Clone(i.kept[n:])
	i.mu.Unlock()
	for _, k := range old {
		i.files.EndLease(ctx, k.lease)
	}
	if len(old) > 0 {
		i.collector.Kick()
	}
}

// Run drops old entries until ctx ends.
func (i *interrupted) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { i.dropOld(ctx, time.Now()) }, keptFor/60)
}

// Recover keeps the content of pulls that the end of the last daemon interrupted. Content of an
// earlier boot may not be on disk: it is removed, as are partially unpacked layers.
func (i *interrupted) Recover(ctx context.Context) error {
	left, err := i.files.Leases.List(ctx)
	if err != nil {
		return err
	}
	left = slices.DeleteFunc(left, disk.IsClientLease)
	for _, l := range left {
		if key := l.Labels[PullLabel]; key != "" && l.Labels[BootLabel] == i.files.Flusher.Boot {
			i.Keep(ctx, key, l)
		} else if err := i.files.Leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	if err := i.files.DropDownloads(len(i.kept) > 0); err != nil {
		return err
	}
	if len(left) == 0 {
		return nil
	}
	log.G(ctx).WithField("pulls", len(left)).Info("Cleaning up after interrupted pulls")
	for name, l := range i.files.Layers {
		if l.Proxied != nil || l.Broken != nil {
			continue
		}
		if err := l.DropPartial(ctx); err != nil {
			return fmt.Errorf("snapshotter %s: remove partially unpacked layers: %w", name, err)
		}
	}
	if _, err := i.files.DB.GarbageCollect(ctx); err != nil {
		return fmt.Errorf("remove interrupted pulls: %w", err)
	}
	return nil
}
