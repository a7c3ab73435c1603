package faults

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestEmptyNode calls a daemon on which nothing has been pulled or run. A kubelet
// makes some of the calls first, and does not start if they fail.
func TestEmptyNode(t *testing.T) {
	b := newBed(t, testbed.Options{DefaultRuntime: "runc", Config: fmt.Sprintf("[runtimes.runc]\nruntime_path = %q\n[runtimes.crun]\nruntime_path = %q\n",
		testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Crun))})
	ctx := testbed.Within(t, time.Minute)
	t.Run("image file system", func(t *testing.T) {
		r, err := b.Client.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
		if err != nil || len(r.GetImageFilesystems()) == 0 {
			t.Fatalf("image file systems: %v, %v", r, err)
		}
		for _, fs := range append(r.GetImageFilesystems(), r.GetContainerFilesystems()...) {
			if fs.GetTimestamp() == 0 || fs.GetUsedBytes() == nil || fs.GetInodesUsed() == nil {
				t.Errorf("fields are missing: %v", fs)
			}
			if at, err := os.Stat(fs.GetFsId().GetMountpoint()); err != nil || !at.IsDir() {
				t.Errorf("mount point %q: %v", fs.GetFsId().GetMountpoint(), err)
			}
		}
	})
	t.Run("lists", func(t *testing.T) {
		images, err := b.Client.ListImages(ctx, &runtimeapi.ListImagesRequest{})
		if err != nil || len(images.GetImages()) != 0 {
			t.Errorf("images: %v, %v", images, err)
		}
		if listed := b.listed(t); listed != "" || b.shown(t) != 0 {
			t.Errorf("pods are listed: %q", listed)
		}
		if stats := b.containerStats(t, time.Minute); len(stats) != 0 {
			t.Errorf("statistics of containers: %v", stats)
		}
	})
	t.Run("streams", func(t *testing.T) {
		for name, first := range map[string]func() error{
			"StreamPodSandboxes": func() error {
				return firstOf(b.Client.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{}))
			},
			"StreamContainers": func() error { return firstOf(b.Client.StreamContainers(ctx, &runtimeapi.StreamContainersRequest{})) },
			"StreamContainerStats": func() error {
				return firstOf(b.Client.StreamContainerStats(ctx, &runtimeapi.StreamContainerStatsRequest{}))
			},
			"StreamPodSandboxStats": func() error {
				return firstOf(b.Client.StreamPodSandboxStats(ctx, &runtimeapi.StreamPodSandboxStatsRequest{}))
			},
			"StreamPodSandboxMetrics": func() error {
				return firstOf(b.Client.StreamPodSandboxMetrics(ctx, &runtimeapi.StreamPodSandboxMetricsRequest{}))
			},
			"StreamImages": func() error { return firstOf(b.Client.StreamImages(ctx, &runtimeapi.StreamImagesRequest{})) },
		} {
			testbed.Checkf(t, first(), "%s on an empty node", name)
		}
	})
	// crun cannot checkpoint pods. CheckpointPod must return Unimplemented, by which a client
	// recognizes that the node does not support the call.
	t.Run("checkpoints of pods", func(t *testing.T) {
		pod := b.Client.RunPod(t, testbed.PodSpec{Handler: "crun", Image: b.Image, Command: []string{"sleep", "3600"}})
		dir := t.TempDir()
		testbed.Refused(t, pod.TryCheckpoint(t, dir, pod.Container), codes.Unimplemented, "only gVisor's runsc")
		testbed.Same(t, b.listed(t), "SANDBOX_READY CONTAINER_RUNNING", "the states are")
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("the refused checkpoint left %v, %v", left, err)
		}
	})
}

// firstOf returns an error unless the stream ends without a message and without an error.
func firstOf[M any](stream interface{ Recv() (M, error) }, err error) error {
	if err != nil {
		return err
	}
	_, err = stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return errors.Join(errors.New("the stream has a message or an error"), err)
}
