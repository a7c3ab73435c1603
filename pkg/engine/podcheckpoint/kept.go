package podcheckpoint

import (
	"context"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
)

// Calls are those of the CRI about checkpoints of pods. A checkpoint is not removed while a call
// uses it.
type Calls struct {
	writing   *writing
	restoring *restoring
	durations *prometheus.HistogramVec
}

// CheckpointPod writes a pod, with all containers that run in it, into a directory.
func (c Calls) CheckpointPod(ctx context.Context, r *runtimeapi.CheckpointPodRequest) (resp *runtimeapi.CheckpointPodResponse, err error) {
	begin := time.Now()
	err = using(r.GetOutputPath(), func() (err error) { resp, err = c.writing.CheckpointPod(ctx, r); return err })
	observe(c.durations, write, time.Since(begin), err)
	return resp, err
}

// RestorePod makes a sandbox and containers that go on where those of a checkpoint were.
func (c Calls) RestorePod(ctx context.Context, r *runtimeapi.RestorePodRequest) (resp *runtimeapi.RestorePodResponse, err error) {
	begin := time.Now()
	err = using(r.GetCheckpointPath(), func() (err error) { resp, err = c.restoring.RestorePod(ctx, r); return err })
	observe(c.durations, restore, time.Since(begin), err)
	return resp, err
}

// using calls do while the checkpoint in dir cannot be removed.
func using(dir string, do func() error) error {
	if !filepath.IsAbs(dir) {
		return do() // it is refused
	}
	release, err := directory.Use(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer release()
	return do()
}

// Waiting returns the directories of checkpoints that restored pods still read: each is read until
// the last of the pod's containers is started.
func (s *Service) Waiting() (all []string) {
	for _, one := range s.pods.Index.AllSandboxes() {
		if one.Status().Phase == pod.PhaseReady && s.pods.Index.Reads(one) {
			all = append(all, filepath.Dir(one.Spec().Checkpoint)) // beside the manifest are the images
		}
	}
	return all
}
