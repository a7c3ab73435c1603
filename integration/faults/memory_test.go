package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestMemoryLimitTooSmallForGVisor: a pod that may use less memory than runsc itself needs failed
// with "killed by signal 9", "input/output error" or "connection refused", which named
// neither memory nor what works.
func TestMemoryLimitTooSmallForGVisor(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{DefaultRuntime: "runsc", Runtimes: map[string]string{"runsc": testbed.Part(t, testbed.Runsc)}})
	atRest := b.Rest(t)
	limited := func(bytes int64) testbed.PodSpec {
		return testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Sandbox: func(c *runtimeapi.PodSandboxConfig) {
			testbed.LimitMemory(t, c.GetLinux().GetCgroupParent(), bytes)
		}}
	}
	names := func(t *testing.T, err error, code codes.Code, all ...string) {
		t.Helper()
		if status.Code(err) != code {
			t.Errorf("got %v, want %s", err, code)
		}
		for _, want := range all {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("the error does not name %q: %v", want, err)
			}
		}
	}
	for _, mebibytes := range []int64{1, 8, 12, 16, 20} {
		t.Run(fmt.Sprintf("%dMi", mebibytes), func(t *testing.T) {
			config := b.Client.SandboxConfig("")
			limited(mebibytes << 20).Sandbox(config)
			_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config})
			names(t, err, codes.FailedPrecondition, fmt.Sprintf("a memory limit of %dMi", mebibytes), "24Mi", "raise the memory limits")
		})
	}
	t.Run("met while a container starts", func(t *testing.T) {
		p := b.Client.RunPod(t, limited(256<<20))
		parent := p.Config.GetLinux().GetCgroupParent()
		config := b.Client.ContainerConfig("late", b.Image, "sleep", "3600")
		c, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config})
		testbed.Must(t, err)
		// The limit of a pod can be lowered while it runs; from here on there is next to nothing left.
		testbed.LimitMemory(t, parent, memoryUsage(t, parent)+64<<10)
		_, err = b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()})
		names(t, err, codes.Unknown, "the pod ran into its memory limit", "24Mi", "raise the memory limits")
		p.Remove(t)
	})
	b.NothingLeft(t, atRest)
}

// memoryUsage is what the kernel counts for a pod's cgroup, as far as it cannot be reclaimed.
func memoryUsage(t *testing.T, parent string) int64 {
	t.Helper()
	file := filepath.Join("/sys/fs/cgroup/memory", parent, "memory.usage_in_bytes")
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		file = filepath.Join("/sys/fs/cgroup", parent, "memory.current")
	}
	text, err := os.ReadFile(file)
	testbed.Must(t, err)
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	testbed.Must(t, err)
	return n
}
