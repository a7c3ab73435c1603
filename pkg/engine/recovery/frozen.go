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
)

// thawPatience is how long recovery waits for a container to resume.
const thawPatience = 2 * time.Second

// thaw resumes containers that were frozen for a checkpoint when the daemon was killed, and removes
// the checkpoint's files. It retries to resume them; the next start repeats all that failed.
func (r *recovery) thaw(ctx context.Context) {
	for _, id := range r.frozen() {
		entry := log.G(ctx).WithField("container", id)
		c, err := r.Pods.Index.Container(id)
		if err == nil {
			bounded, cancel := context.WithTimeout(ctx, thawPatience)
			err = criu.ThawOnce(bounded, r.Pods.Layout, c)
			cancel()
			if err != nil {
				entry.WithError(err).Warn("Container may still be frozen by an interrupted checkpoint; retrying")
				go criu.ThawLater(r.Pods, c, func() error { return r.removeCheckpoint(id) })
				continue
			}
		}
		if err := r.removeCheckpoint(id); err != nil {
			entry.WithError(err).Warn("Failed to remove interrupted checkpoint")
		}
	}
}

// frozen returns the containers that may be frozen.
func (r *recovery) frozen() (ids []string) {
	for _, dir := range []string{r.Pods.FrozenDir(""), r.Pods.CheckpointsDir("")} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // none was written
		}
		for _, e := range entries {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (r *recovery) removeCheckpoint(id string) error {
	data := r.Pods.CheckpointsDir(id)
	// A killed CRIU may have left a mount in data.
	return errors.Join(mountpoint.UnmountBelow(data), os.RemoveAll(data), os.RemoveAll(r.Pods.FrozenDir(id)))
}
