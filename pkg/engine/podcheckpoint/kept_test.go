package podcheckpoint

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// A checkpoint is needed until each of the pod's containers has started or has failed to start.
func TestWaiting(t *testing.T) {
	started := pod.ContainerStatus{Phase: pod.PhaseRunning, StartedAt: 1}
	for name, c := range map[string]struct {
		containers []pod.ContainerStatus
		needed     bool
	}{
		"all are started":          {[]pod.ContainerStatus{started, started}, false},
		"one is not started":       {[]pod.ContainerStatus{started, {Phase: pod.PhaseCreated}}, true},
		"one has exited":           {[]pod.ContainerStatus{started, {Phase: pod.PhaseExited, StartedAt: 1}}, false},
		"one could not be started": {[]pod.ContainerStatus{started, {Phase: pod.PhaseExited}}, false},
	} {
		all := pods(t)
		dir := filepath.Join(t.TempDir(), "checkpoint")
		spec := pod.SandboxSpec{Definition: &handler.Definition{}, Checkpoint: filepath.Join(dir, manifest.ImagesDir)}
		s := enginetest.Sandbox(t, t.TempDir(), spec, &enginetest.Runner{})
		test.Must(t, s.Update(func(st *pod.SandboxStatus) error { st.Phase = pod.PhaseReady; return nil }))
		all.Index.AddSandbox(s)
		records, _, err := store.Open[pod.ContainerSpec, pod.ContainerStatus](t.TempDir())
		test.Must(t, err)
		for _, status := range c.containers {
			spec := pod.ContainerSpec{Sandbox: s.ID(), Checkpoint: spec.Checkpoint}
			o := test.Value(records.Create(pod.NewID(), spec, status, store.Relaxed))(t)
			all.Index.AddContainer(pod.NewContainer(o, s))
		}
		test.Equal(t, fmt.Sprintf("%s: the checkpoint is needed", name), slices.Contains((&Service{Deps: Deps{Pods: all}}).Waiting(), dir), c.needed)
	}
}
