package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestUnreadableSandbox damages the record of a pod under a daemon that was killed. Its container
// was said to have exited and ran on, under a supervisor that no pod was counted for.
func TestUnreadableSandbox(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: family})
	info := b.info(t, pod.Container.ID)
	inside := inCgroup(t, info.PID)
	b.Kill9(t)
	testbed.Must(t, os.WriteFile(filepath.Join(b.Root, "records", "sandboxes", pod.ID, "spec.json"), []byte("{"), 0o600))
	b.Start(t)
	testbed.Same(t, pod.Container.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_EXITED, "the container is")
	for _, pid := range inside {
		if alive(pid) {
			t.Errorf("process %d of the exited container runs", pid)
		}
	}
	testbed.Eventually(t, time.Minute, func() error {
		if pid := b.supervisors(t)[info.Supervisor]; pid > 0 {
			return fmt.Errorf("supervisor %d has no pods, and stays", pid)
		}
		return nil
	})
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}
