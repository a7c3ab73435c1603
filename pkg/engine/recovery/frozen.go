package recovery

import (
	"context"
	"os"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// thaw lets the containers go on that stood still for a checkpoint when the
// daemon was killed, and removes what there was of it. What cannot be thawed now
// is tried again at the next start.
func (r *recovery) thaw(ctx context.Context) {
	entries, err := os.ReadDir(r.pods.CheckpointsDir(""))
	if err != nil {
		return // there was never one
	}
	for _, e := range entries {
		entry := log.G(ctx).WithField("container", e.Name())
		c, err := r.pods.Index.Container(e.Name())
		if err == nil && c.Status().Phase == pod.PhaseRunning {
			err = r.ask(ctx, c.Sandbox, func(ctx context.Context) error { return r.thawOne(ctx, c) })
			if err != nil {
				entry.WithError(err).Warn("Container may still be frozen by an interrupted checkpoint")
				continue
			}
		}
		if err := os.RemoveAll(r.pods.CheckpointsDir(e.Name())); err != nil {
			entry.WithError(err).Warn("Failed to remove interrupted checkpoint")
		}
	}
}

// thawOne lets a container go on, if it does not.
func (r *recovery) thawOne(ctx context.Context, c *pod.Container) error {
	client, err := c.Sandbox.Runner.Client(ctx)
	if err != nil {
		return err
	}
	// A successor of the supervisor does not know that it stands still.
	_, err = client.Task.Resume(ctx, &taskapi.ResumeRequest{ID: c.ID()})
	if err != nil && container.GoesOn(ctx, client, c) {
		return nil
	}
	return task.FromShim(err)
}
