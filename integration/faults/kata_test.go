package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/testbed"
)

// kataBed starts berth with the imitation of Kata's shim as its handler.
func kataBed(t *testing.T, settings shims.Kata) (*bed, *testbed.Kata) {
	t.Helper()
	settings.Memory = 8
	kata := testbed.NewKata(t, settings)
	return newBed(t, testbed.Options{Config: "default_runtime = \"kata\"\n" + kata.TOML("kata", "container_create_timeout = \"10s\"")}), kata
}

// TestKata runs a pod under a shim that reads options as typeurl 1 does, has its own
// cgroup, and takes a signal to all for one to the container.
func TestKata(t *testing.T) {
	t.Parallel()
	b, _ := kataBed(t, shims.Kata{})
	atRest := b.rest(t)
	pod := b.client.RunPod(t, testbed.PodSpec{Image: b.image, Command: []string{"sleep", "3600"}})
	if groups := pod.Container.Exec(t, "cat", "/proc/self/cgroup"); !strings.Contains(groups, "/kata_"+pod.ID+"/") {
		t.Errorf("the imitation runs its containers in %s", groups)
	}
	t.Run("a command that times out leaves its container", func(t *testing.T) {
		_, err := b.client.ExecSync(within(t, time.Minute), &runtimeapi.ExecSyncRequest{
			ContainerId: pod.Container.ID, Cmd: []string{"sleep", "3601"}, Timeout: 1,
		})
		refused(t, err, codes.DeadlineExceeded, "timed out")
		b.awaitNone(t, "sleep 3601")
		if st := pod.Container.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container is %s with %d", st.GetState(), st.GetExitCode())
		}
		pod.Container.Exec(t, "true")
	})
	pod.Remove(t)
	b.nothingLeft(t, atRest)
}

// awaitNone waits until nothing of this berth runs with words in its command line.
func (b *bed) awaitNone(t *testing.T, words string) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		for _, p := range b.Snapshot(t)[testbed.Processes] {
			if strings.Contains(p, words) {
				return fmt.Errorf("there is still %s", p)
			}
		}
		return nil
	})
}
