package image

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
)

const (
	// keptFor is how long the parts of an interrupted pull wait for the next attempt:
	// the kubelet's longest pause between two is five minutes.
	keptFor = time.Hour
	// keptPulls is of how many pulls parts are kept; the oldest give way.
	keptPulls = 16

	// A lease says of which pull and of which boot it is.
	pullLabel, bootLabel = "berth.dev/pull", "berth.dev/boot"
)

// interrupted keeps what pulls brought that were interrupted, by a lease each, for
// the next pull of that image. It is given up where the space is needed. The expiry that
// containerd knows of leases does not fit: it is fixed when the pull begins.
type interrupted struct {
	files     *files
	collector *worker

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
	ctx, l, err = i.files.lease(ctx, map[string]string{pullLabel: key, bootLabel: i.files.flusher.boot})
	return ctx, l, false, err
}

func (i *interrupted) take(key string) (leases.Lease, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n, k := range i.kept {
		if k.key == key {
			i.kept = slices.Delete(i.kept, n, n+1)
			return k.lease, true
		}
	}
	return leases.Lease{}, false
}

func (i *interrupted) keep(ctx context.Context, key string, l leases.Lease) {
	i.mu.Lock()
	i.kept = append(i.kept, keptPull{key: key, lease: l, since: time.Now()})
	i.mu.Unlock()
	i.dropOld(ctx, time.Now())
}

// dropOld gives up what nobody came back for.
func (i *interrupted) dropOld(ctx context.Context, now time.Time) {
	i.mu.Lock()
	n := max(0, len(i.kept)-keptPulls)
	for n < len(i.kept) && now.Sub(i.kept[n].since) >= keptFor {
		n++
	}
	old := slices.Clone(i.kept[:n])
	i.kept = slices.Delete(i.kept, 0, n)
	i.mu.Unlock()
	i.end(ctx, old)
}

// done ends what is kept of an image that is there now.
func (i *interrupted) done(ctx context.Context, key string) {
	if l, ok := i.take(key); ok {
		i.files.endLease(ctx, l)
	}
}

// drop gives up everything that is kept.
func (i *interrupted) drop(ctx context.Context) {
	i.mu.Lock()
	all := i.kept
	i.kept = nil
	i.mu.Unlock()
	i.end(ctx, all)
}

func (i *interrupted) end(ctx context.Context, pulls []keptPull) {
	for _, k := range pulls {
		i.files.endLease(ctx, k.lease)
	}
	if len(pulls) > 0 {
		i.collector.kick()
	}
}

// run gives up what is old, until ctx ends.
func (i *interrupted) run(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, keptFor/60, false, func(ctx context.Context) (bool, error) {
		i.dropOld(ctx, time.Now())
		return false, nil
	})
}

// recover keeps what pulls left that the end of the last daemon interrupted. What is
// from before the last boot may not be on disk; it is removed, as are layers that
// were being unpacked.
func (i *interrupted) recover(ctx context.Context) error {
	left, err := i.files.leases.List(ctx)
	if err != nil {
		return err
	}
	left = slices.DeleteFunc(left, isClientLease)
	for _, l := range left {
		if key := l.Labels[pullLabel]; key != "" && l.Labels[bootLabel] == i.files.flusher.boot {
			i.keep(ctx, key, l)
		} else if err := i.files.leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	if err := i.files.dropDownloads(len(i.kept) > 0); err != nil {
		return err
	}
	if len(left) == 0 {
		return nil
	}
	log.G(ctx).WithField("pulls", len(left)).Info("Cleaning up after interrupted pulls")
	for name, l := range i.files.layers {
		if l.proxied != nil || l.broken != nil {
			continue
		}
		if err := l.dropHalf(ctx); err != nil {
			return fmt.Errorf("snapshotter %s: remove half unpacked layers: %w", name, err)
		}
	}
	if _, err := i.files.db.GarbageCollect(ctx); err != nil {
		return fmt.Errorf("remove interrupted pulls: %w", err)
	}
	return nil
}
