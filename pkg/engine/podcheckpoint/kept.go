package podcheckpoint

import (
	"context"
	"path/filepath"
	"time"

	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/retention"
)

// Calls are those of the CRI about checkpoints of pods. While one is at work its checkpoint is
// not removed.
type Calls struct {
	writing   *writing
	restoring *restoring
	keeper    *retention.Keeper
}

// CheckpointPod writes a pod, with all containers that run in it, into a directory.
func (c Calls) CheckpointPod(ctx context.Context, r *runtimeapi.CheckpointPodRequest) (resp *runtimeapi.CheckpointPodResponse, err error) {
	begin := time.Now()
	err = using(ctx, r.GetOutputPath(), func() (err error) { resp, err = c.writing.CheckpointPod(ctx, r); return err })
	c.keeper.Ended(retention.Write, time.Since(begin), err)
	if err == nil {
		c.keeper.Written(r.GetOutputPath())
	} else if ferr := c.keeper.Failed(r.GetOutputPath()); ferr != nil {
		log.G(ctx).WithError(ferr).WithField("directory", r.GetOutputPath()).Warn("Failed to remove directory of checkpoint that was not written")
	}
	return resp, err
}

// RestorePod makes a sandbox and containers that go on where those of a checkpoint were.
func (c Calls) RestorePod(ctx context.Context, r *runtimeapi.RestorePodRequest) (resp *runtimeapi.RestorePodResponse, err error) {
	begin := time.Now()
	err = using(ctx, r.GetCheckpointPath(), func() (err error) { resp, err = c.restoring.RestorePod(ctx, r); return err })
	c.keeper.Ended(retention.Restore, time.Since(begin), err)
	return resp, err
}

// using does something with the checkpoint in dir, which is not removed meanwhile.
func using(ctx context.Context, dir string, do func() error) error {
	if !filepath.IsAbs(dir) {
		return do() // it is refused
	}
	release, err := retention.Use(ctx, filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer release()
	return do()
}

// waiting are the directories of checkpoints that pods are yet to go on from: each is read until the
// last of the pod's containers is started.
func waiting(pods *pod.Registry) func() []string {
	return func() (all []string) {
		for _, s := range pods.Index.AllSandboxes() {
			if s.Status().Phase == pod.PhaseReady && pods.Index.Reads(s) {
				all = append(all, filepath.Dir(s.Spec().Checkpoint)) // beside the manifest are the images
			}
		}
		return all
	}
}
