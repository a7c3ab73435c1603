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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// memoryLimit is what the kernel holds a process to.
func memoryLimit(t *testing.T, pid int) string {
	t.Helper()
	membership, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	testbed.Must(t, err)
	for line := range strings.Lines(string(membership)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		file := filepath.Join("/sys/fs/cgroup", fields[1], fields[2], "memory.limit_in_bytes")
		if fields[0] == "0" {
			file = filepath.Join("/sys/fs/cgroup", fields[2], "memory.max")
		} else if fields[1] != "memory" {
			continue
		}
		if text, err := os.ReadFile(file); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	t.Fatalf("process %d has no memory limit: %s", pid, membership)
	return ""
}

// TestUpdateThatCannotBeRecorded changes a limit on a full disk: what is not on
// record must not hold either, and what is refused must not stay in part.
func TestUpdateThatCannotBeRecorded(t *testing.T) {
	const before, after = 64 << 20, 96 << 20
	runtime := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf("default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = %q\n", runtime.Path)})
	disk := b.smallRoot(t, 48<<20)
	atRest := b.Rest(t)
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Container: func(c *runtimeapi.ContainerConfig) {
		c.Linux.Resources.MemoryLimitInBytes = before
	}}
	pod := b.Client.RunPod(t, spec)
	unstarted := pod.CreateContainer(t, "unstarted", spec)
	update := func(c *testbed.Container) error {
		_, err := b.Client.UpdateContainerResources(testbed.Within(t, time.Minute), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: c.ID, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: after},
		})
		return err
	}
	holds := func(t *testing.T, want int64) {
		t.Helper()
		for _, c := range []*testbed.Container{pod.Container, unstarted} {
			testbed.Same(t, c.Status(t).GetResources().GetLinux().GetMemoryLimitInBytes(), want, "the status says")
			if st := c.Status(t).GetState(); st != runtimeapi.ContainerState_CONTAINER_RUNNING {
				continue
			}
			if got := memoryLimit(t, b.info(t, c.ID).PID); got != strconv.FormatInt(want, 10) {
				t.Errorf("the kernel has %s, want %d", got, want)
			}
		}
	}
	holds(t, before)

	disk.fill(t)
	testbed.Refused(t, update(pod.Container), codes.ResourceExhausted, "no space left")
	testbed.Refused(t, update(unstarted), codes.ResourceExhausted, "no space left")
	disk.empty(t)
	holds(t, before)
	unstarted.Start(t) // with what its spec says
	holds(t, before)

	runtime.on(t, "update", fmt.Sprintf("rm -f %s/on-update; %s \"$@\"; echo 'half done' >&2; exit 1", filepath.Dir(runtime.Path), testbed.Part(t, testbed.Runc)))
	testbed.Refused(t, update(pod.Container), codes.Unknown, "half done")
	holds(t, before)

	for _, c := range []*testbed.Container{pod.Container, unstarted} {
		testbed.Check(t, update(c))
	}
	holds(t, after)
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}
