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
	// KeptFor is how long the parts of an interrupted pull wait for the next attempt:
	// the kubelet's longest pause between two is five minutes.
	KeptFor = time.Hour
	// KeptPulls is of how many pulls parts are kept; the oldest give way.
	KeptPulls = 16

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

	Mu   sync.Mutex
	Kept []keptPull // the oldest first
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
	i.Mu.Lock()
	defer i.Mu.Unlock()
	n := slices.IndexFunc(i.Kept, func(k keptPull) bool { return k.key == key })
	if n < 0 {
		return leases.Lease{}, false
	}
	taken := i.Kept[n].lease
	i.Kept = slices.Delete(i.Kept, n, n+1)
	return taken, true
}

func (i *interrupted) Keep(ctx context.Context, key string, l leases.Lease) {
	i.Mu.Lock()
	i.Kept = append(i.Kept, keptPull{key: key, lease: l, since: time.Now()})
	i.Mu.Unlock()
	i.DropOld(ctx, time.Now())
}

// DropOld gives up what no later pull came back for.
func (i *interrupted) DropOld(ctx context.Context, now time.Time) {
	i.drop(ctx, func() int {
		n := max(0, len(i.Kept)-KeptPulls)
		for n < len(i.Kept) && now.Sub(i.Kept[n].since) >= KeptFor {
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
func (i *interrupted) Drop(ctx context.Context) { i.drop(ctx, func() int { return len(i.Kept) }) }

// drop gives up the oldest, as many as count returns while mu is held.
func (i *interrupted) drop(ctx context.Context, count func() int) {
	i.Mu.Lock()
	n := count()
	old := i.Kept[:n:n]
	i.Kept = slices.Clone(i.Kept[n:])
	i.Mu.Unlock()
	for _, k := range old {
		i.files.EndLease(ctx, k.lease)
	}
	if len(old) > 0 {
		i.collector.Kick()
	}
}

// Run gives up what is old, until ctx ends.
func (i *interrupted) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { i.DropOld(ctx, time.Now()) }, KeptFor/60)
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
	if err := i.files.DropDownloads(len(i.Kept) > 0); err != nil {
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
