package recovery

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/criu"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

const (
	// thawPatience is how long the start waits for a container to go on.
	thawPatience = 2 * time.Second
	// thawInterval is the pause between later attempts: a checkpoint that outlived the
	// daemon may still be written.
	thawInterval = 5 * time.Second
)

// thaw lets the containers go on that stood still for a checkpoint when the
// daemon was killed, and removes what there was of it. What cannot be thawed at once
// is tried again and again, also at the next start.
func (r *recovery) thaw(ctx context.Context) {
	for _, id := range r.frozen() {
		entry := log.G(ctx).WithField("container", id)
		c, err := r.pods.Index.Container(id)
		if err == nil {
			if err = r.thawOne(ctx, c); err != nil {
				entry.WithError(err).Warn("Container may still be frozen by an interrupted checkpoint; retrying")
				go r.thawLater(c)
				continue
			}
		}
		r.removeCheckpoint(ctx, id)
	}
}

// frozen are the containers that may stand still.
func (r *recovery) frozen() (ids []string) {
	for _, dir := range []string{r.pods.FrozenDir(""), r.pods.CheckpointsDir("")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // there was never one
		}
		for _, e := range entries {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// thawLater tries until the container goes on or has ended, or the daemon stops.
func (r *recovery) thawLater(c *pod.Container) {
	ctx := r.pods.Background
	for {
		select {
		case <-time.After(thawInterval):
		case <-ctx.Done():
			return
		}
		if c.Op.Lock(ctx) != nil {
			return
		}
		err := r.thawOne(ctx, c)
		if err == nil {
			r.removeCheckpoint(ctx, c.ID())
		}
		c.Op.Unlock()
		if err == nil {
			log.G(ctx).WithField("container", c.ID()).Info("Container goes on after an interrupted checkpoint")
			return
		}
	}
}

func (r *recovery) removeCheckpoint(ctx context.Context, id string) {
	data := r.pods.CheckpointsDir(id)
	// A CRIU that was killed may have left a mount in it.
	if err := errors.Join(mountpoint.UnmountBelow(data), os.RemoveAll(data), os.RemoveAll(r.pods.FrozenDir(id))); err != nil {
		log.G(ctx).WithError(err).WithField("container", id).Warn("Failed to remove interrupted checkpoint")
	}
}

// thawOne lets a container go on, if it runs and does not, and opens its pod's network.
func (r *recovery) thawOne(ctx context.Context, c *pod.Container) error {
	ctx, cancel := context.WithTimeout(ctx, thawPatience)
	defer cancel()
	if c.Status().Phase == pod.PhaseRunning {
		if err := criu.Resume(ctx, c); err != nil {
			return err
		}
	}
	return criu.Unlock(ctx, r.pods.Layout, c)
}
