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
	// keptFor is how long the parts of an interrupted pull wait for the next attempt:
	// the kubelet's longest pause between two is five minutes.
	keptFor = time.Hour
	// keptPulls is of how many pulls parts are kept; the oldest give way.
	keptPulls = 16

	// PullLabel is on a lease: the pull that it belongs to.
	PullLabel = "berth.dev/pull"
	// BootLabel is on a lease: the boot that it belongs to.
	BootLabel = "berth.dev/boot"
)

// interrupted keeps what pulls brought that were interrupted, by a lease each, for
// the next pull of that image. It is given up where the space is needed. The expiry that
// containerd knows of leases does not fit: it is fixed when the pull begins.
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

// lease is what a pull writes under: that of an interrupted pull of the same image,
// or a new one. keepsParts is true for the former.
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

// dropOld gives up what no later pull came back for.
func (i *interrupted) dropOld(ctx context.Context, now time.Time) {
	i.drop(ctx, func() int {
		n := max(0, len(i.kept)-keptPulls)
		for n < len(i.kept) && now.Sub(i.kept[n].since) >= keptFor {
			n++
		}
		return n
	})
}

// done ends what is kept of an image that is there now.
func (i *interrupted) done(ctx context.Context, key string) {
	if l, ok := i.take(key); ok {
		i.files.EndLease(ctx, l)
	}
}

// Drop gives up everything that is kept.
func (i *interrupted) Drop(ctx context.Context) { i.drop(ctx, func() int { return len(i.kept) }) }

// drop gives up the oldest, as many as count returns while mu is held.
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

// Run gives up what is old, until ctx ends.
func (i *interrupted) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { i.dropOld(ctx, time.Now()) }, keptFor/60)
}

// Recover keeps what pulls left that the end of the last daemon interrupted. What is
// from before the last boot may not be on disk; it is removed, as are layers that
// were being unpacked.
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
		if err := l.DropHalf(ctx); err != nil {
			return fmt.Errorf("snapshotter %s: remove half unpacked layers: %w", name, err)
		}
	}
	if _, err := i.files.DB.GarbageCollect(ctx); err != nil {
		return fmt.Errorf("remove interrupted pulls: %w", err)
	}
	return nil
}
