package faults

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestGVisorSandboxEnds has the one process end that all containers of a gVisor pod
// run in: by the kernel, because the pod used more memory than it may, and by
// somebody else.
func TestGVisorSandboxEnds(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{DefaultRuntime: "runsc", Runtimes: map[string]string{"runsc": testbed.Part(t, testbed.Runsc)}})
	atRest := b.Rest(t)
	const limit = 192 << 20
	pod := func(t *testing.T) (*testbed.Pod, *testbed.Container) {
		p := b.Client.RunPod(t, testbed.PodSpec{
			Image: b.Image, Command: []string{"sleep", "3600"},
			Sandbox: func(c *runtimeapi.PodSandboxConfig) { testbed.LimitMemory(t, c.GetLinux().GetCgroupParent(), limit) },
		})
		eats := []string{"sh", "-c", "while [ ! -e /eat ]; do sleep 0.1; done; tail /dev/zero"}
		other := p.RunContainer(t, "other", testbed.PodSpec{Image: b.Image, Command: eats})
		return p, other
	}
	ended := func(t *testing.T, p *testbed.Pod, reason string, all ...*testbed.Container) {
		t.Helper()
		for _, c := range all {
			s := c.WaitExit(t)
			if s.GetExitCode() != 137 || s.GetReason() != reason || !strings.Contains(s.GetMessage(), "the sandbox that runs all containers of the pod was killed") {
				t.Errorf("%s ended with %d, %s, %q", s.GetMetadata().GetName(), s.GetExitCode(), s.GetReason(), s.GetMessage())
			}
		}
		testbed.Eventually(t, time.Minute, func() error {
			if state := p.Status(t).GetState(); state != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				return fmt.Errorf("the sandbox is %s", state)
			}
			return nil
		})
		p.Remove(t)
	}
	t.Run("out of memory", func(t *testing.T) {
		p, greedy := pod(t)
		if total := greedy.Exec(t, "sh", "-c", "grep MemTotal /proc/meminfo"); strings.Fields(total)[1] != strconv.Itoa(limit>>10) {
			t.Errorf("the pod sees %q, and may use %d kB", total, limit>>10)
		}
		greedy.Exec(t, "touch", "/eat")
		ended(t, p, "OOMKilled", p.Container, greedy)
	})
	t.Run("killed", func(t *testing.T) {
		p, other := pod(t)
		killAs(t, b.sandboxPID(t, p.ID), syscall.SIGKILL)
		ended(t, p, "Error", p.Container, other)
	})
	t.Run("killed after a take-over", func(t *testing.T) {
		p, other := pod(t)
		for _, pid := range b.supervisors(t) {
			killAs(t, pid, syscall.SIGKILL)
		}
		b.Restart(t)
		killAs(t, b.sandboxPID(t, p.ID), syscall.SIGKILL)
		ended(t, p, "Error", p.Container, other)
	})
	b.NothingLeft(t, atRest)
}
