package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestFullDisk fills the filesystem of engine.root while pods run.
func TestFullDisk(t *testing.T) {
	b := newBed(t, testbed.Options{})
	disk := b.smallRoot(t, 48<<20)
	atRest := b.Rest(t)
	big := b.Registry.Push(t, "faults/big:1", testbed.Busybox(t, testbed.WithLayer(
		testbed.File{Path: "big", Mode: 0o644, Body: []byte(time.Now().String())})))
	staying := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	empty := b.Client.RunSandbox(t, testbed.PodSpec{})
	unstarted := empty.CreateContainer(t, "unstarted", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	address := staying.IP(t)

	disk.fill(t)
	ctx := testbed.Within(t, time.Minute)
	_, err := b.Client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
	fullDiskOnce(t, err, b.Root)
	_, err = b.Client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
		PodSandboxId: empty.ID, Config: b.Client.ContainerConfig("main", b.Image, "true"), SandboxConfig: empty.Config,
	})
	fullDiskOnce(t, err, b.Root)
	_, err = b.Client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: big}})
	testbed.Refused(t, err, codes.ResourceExhausted, "remove images or enlarge")
	_, err = b.Client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: unstarted.ID})
	fullDiskOnce(t, err, b.Root)
	testbed.Same(t, b.listed(t), "SANDBOX_READY SANDBOX_READY CONTAINER_EXITED CONTAINER_RUNNING", "on a full disk, the states are")
	testbed.Same(t, staying.Container.Exec(t, "echo", "goes on"), "goes on\n", "exec printed")

	// A daemon that cannot write must still start and list its pods.
	b.Kill9(t)
	b.Start(t)
	testbed.Same(t, staying.IP(t), address, "after a restart on a full disk the address is")
	testbed.Same(t, staying.Container.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "after a restart on a full disk the container is")
	// Stop and remove must work on a full disk, because they free space.
	staying.Container.Stop(t, 0)
	exitedWith(t, staying.Container.Status(t), 137)
	staying.Remove(t)
	empty.Remove(t)
	testbed.Same(t, b.listed(t), "", "after the removal, the states are")

	disk.empty(t)
	b.NothingLeft(t, atRest)
	b.Client.RunPod(t, testbed.PodSpec{Image: big, Command: []string{"sleep", "3600"}}).Remove(t)
	if _, err := b.Client.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: big}}); err != nil {
		t.Error(err)
	}
	b.NothingLeft(t, atRest)
}

// fullDiskOnce fails the test unless the error names the disk and its free space, and
// the cause only once. A regression test: a message once had the cause three times.
func fullDiskOnce(t *testing.T, err error, root string) {
	t.Helper()
	testbed.Refused(t, err, codes.ResourceExhausted, "no space left", root, "free")
	if text := status.Convert(err).Message(); strings.Count(text, "no space left") != 1 || strings.Contains(text, "resource exhausted") {
		t.Errorf("the message does not have the cause exactly once: %s", text)
	}
}

// smallDisk is a filesystem that can be filled.
type smallDisk struct{ filler string }

// smallRoot restarts berth with an empty small filesystem as engine.root.
func (b *bed) smallRoot(t *testing.T, size int) smallDisk {
	t.Helper()
	b.Stop(t)
	testbed.Must(t, os.RemoveAll(b.Root))
	testbed.Must(t, os.MkdirAll(b.Root, 0o711))
	testbed.Must(t, unix.Mount("tmpfs", b.Root, "tmpfs", 0, "size="+strconv.Itoa(size)))
	disk := smallDisk{filler: filepath.Join(b.Root, "filler")}
	t.Cleanup(func() {
		_ = os.Remove(disk.filler)
		if b.Running() {
			testbed.Checkf(t, b.Client.RemoveAllPods(context.Background()), "remove the pods")
			b.Stop(t)
		}
		testbed.Checkf(t, unix.Unmount(b.Root, unix.MNT_DETACH), "unmount the small disk")
	})
	b.Start(t)
	return disk
}

// fill writes until no byte is free.
func (d smallDisk) fill(t *testing.T) {
	t.Helper()
	f, err := os.Create(d.filler)
	testbed.Must(t, err)
	defer f.Close()
	for _, chunk := range []int{1 << 20, 4096} {
		zeros := make([]byte, chunk)
		for err = nil; err == nil; {
			_, err = f.Write(zeros)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
}

func (d smallDisk) empty(t *testing.T) {
	t.Helper()
	testbed.Must(t, os.Remove(d.filler))
}

// memoryLimit returns the memory limit of a process's cgroup.
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

// TestUpdateThatCannotBeRecorded updates a limit on a full disk, and with a runtime
// that fails after the change. In both cases the old limit must be in the status and
// in the kernel.
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
			testbed.Same(t, c.Status(t).GetResources().GetLinux().GetMemoryLimitInBytes(), want, "the memory limit in the status is")
			if st := c.Status(t).GetState(); st != runtimeapi.ContainerState_CONTAINER_RUNNING {
				continue
			}
			if got := memoryLimit(t, b.info(t, c.ID).PID); got != strconv.FormatInt(want, 10) {
				t.Errorf("the memory limit in the kernel is %s, want %d", got, want)
			}
		}
	}
	holds(t, before)

	disk.fill(t)
	testbed.Refused(t, update(pod.Container), codes.ResourceExhausted, "no space left")
	testbed.Refused(t, update(unstarted), codes.ResourceExhausted, "no space left")
	disk.empty(t)
	holds(t, before)
	unstarted.Start(t) // with the limit of its OCI spec
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
