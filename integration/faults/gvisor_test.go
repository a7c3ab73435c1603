package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
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
		p.WaitNotReady(t)
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

// TestMappedVolumeUnderGVisor: a volume with mapped ids has the same owners under gVisor as under
// runc, or is refused where runsc does not declare that it maps them.
func TestMappedVolumeUnderGVisor(t *testing.T) {
	t.Parallel()
	runsc := testbed.Part(t, testbed.Runsc)
	b := newBed(t, testbed.Options{DefaultRuntime: "runc", Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc), "runsc": runsc}})
	dir := t.TempDir()
	for name, id := range map[string]int{"root": 0, "user": 5} {
		path := filepath.Join(dir, name)
		testbed.Must(t, errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, id, id)))
	}
	ids := []*runtimeapi.IDMapping{{HostId: 70000, Length: 65536}}
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Container: func(c *runtimeapi.ContainerConfig) {
		c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: dir, ContainerPath: "/volume", UidMappings: ids, GidMappings: ids})
	}}
	owners := func(c *testbed.Container) string {
		return c.Exec(t, "stat", "-c", "%n %u %g", "/volume/root", "/volume/user")
	}
	const want = "/volume/root 70000 70000\n/volume/user 70005 70005\n"
	testbed.Same(t, owners(b.Client.RunPod(t, spec).Container), want, "under runc")
	spec.Handler = "runsc"
	if err := exec.CommandContext(t.Context(), runsc, "features").Run(); err == nil {
		testbed.Same(t, owners(b.Client.RunPod(t, spec).Container), want, "under gVisor")
		return
	}
	p := b.Client.RunSandbox(t, spec)
	config := b.Client.ContainerConfig("c", b.Image, spec.Command...)
	spec.Container(config)
	_, err := p.TryCreate(t, config)
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "mapping IDs of mounts") {
		t.Errorf("under a gVisor without features: %v", err)
	}
}

// TestWrongFlagOfGVisor has runsc fail before it has a log, while its stderr is the sandbox's.
func TestWrongFlagOfGVisor(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"gvisor\"\n[runtimes.gvisor]\nruntime_path = %q\noptions = { global_flags = [\"--bogus\"] }\n", testbed.Part(t, testbed.Runsc))})
	err := b.startSandbox(t, "gvisor", b.Client.SandboxConfig(""))
	testbed.Refused(t, err, codes.Unknown, "flag provided but not defined: -bogus")
	c := b.admin(t)
	shown, err := c.GetHandler(t.Context(), &adminv1.GetHandlerRequest{Name: "gvisor"})
	if got := shown.GetLastFailure(); err != nil || !strings.Contains(got, "flag provided but not defined: -bogus\nUsage: runsc ") {
		t.Errorf("%v, %s", err, got)
	}
}
