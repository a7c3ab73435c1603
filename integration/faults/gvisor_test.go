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
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// TestGVisorSandboxEnds kills the process in which all containers of a gVisor pod run:
// by the kernel's OOM killer, and by a signal.
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
				t.Errorf("container %s exited with %d, %s, %q", s.GetMetadata().GetName(), s.GetExitCode(), s.GetReason(), s.GetMessage())
			}
		}
		p.WaitNotReady(t)
		p.Remove(t)
	}
	t.Run("out of memory", func(t *testing.T) {
		p, greedy := pod(t)
		if total := greedy.Exec(t, "sh", "-c", "grep MemTotal /proc/meminfo"); strings.Fields(total)[1] != strconv.Itoa(limit>>10) {
			t.Errorf("MemTotal in the pod is %q, want the limit, %d kB", total, limit>>10)
		}
		greedy.Exec(t, "touch", "/eat")
		ended(t, p, "OOMKilled", p.Container, greedy)
	})
	t.Run("killed", func(t *testing.T) {
		p, other := pod(t)
		killAs(t, b.sandboxPID(t, p.ID), syscall.SIGKILL)
		ended(t, p, "Error", p.Container, other)
	})
	t.Run("killed under a new supervisor", func(t *testing.T) {
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

// TestMappedVolumeUnderGVisor: a volume with mapped IDs has the same owners under gVisor as under
// runc. It is refused if runsc has no `features` command that declares the support.
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
	testbed.Same(t, owners(b.Client.RunPod(t, spec).Container), want, "the owners under runc are")
	spec.Handler = "runsc"
	if err := exec.CommandContext(t.Context(), runsc, "features").Run(); err == nil {
		testbed.Same(t, owners(b.Client.RunPod(t, spec).Container), want, "the owners under gVisor are")
		return
	}
	p := b.Client.RunSandbox(t, spec)
	config := b.Client.ContainerConfig("c", b.Image, spec.Command...)
	spec.Container(config)
	_, err := p.TryCreate(t, config)
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "mapping IDs of mounts") {
		t.Errorf("create under a runsc without `features`: %v", err)
	}
}

// TestWrongFlagOfGVisor has runsc fail before it opens its log: the error must have runsc's stderr.
func TestWrongFlagOfGVisor(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"gvisor\"\n[runtimes.gvisor]\nruntime_path = %q\noptions = { global_flags = [\"--bogus\"] }\n", testbed.Part(t, testbed.Runsc))})
	err := b.startSandbox(t, "gvisor", b.Client.SandboxConfig(""))
	testbed.Refused(t, err, codes.Unknown, "flag provided but not defined: -bogus")
	c := b.admin(t)
	shown, err := c.GetHandler(t.Context(), &adminv1.GetHandlerRequest{Name: "gvisor"})
	if got := shown.GetLastFailure(); err != nil || !strings.Contains(got, "flag provided but not defined: -bogus\nUsage: runsc ") {
		t.Errorf("the last failure does not have runsc's output: %v, %s", err, got)
	}
}

// TestMemoryLimitTooSmallForGVisor: if the memory limit of a pod is lower than runsc itself needs,
// the error must name the limit and the minimum. The error once was "killed by signal 9",
// "input/output error" or "connection refused".
func TestMemoryLimitTooSmallForGVisor(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{DefaultRuntime: "runsc", Runtimes: map[string]string{"runsc": testbed.Part(t, testbed.Runsc)}})
	atRest := b.Rest(t)
	limited := func(bytes int64) testbed.PodSpec {
		return testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}, Sandbox: func(c *runtimeapi.PodSandboxConfig) {
			testbed.LimitMemory(t, c.GetLinux().GetCgroupParent(), bytes)
		}}
	}
	for _, mebibytes := range []int64{1, 8, 12, 16, 20} {
		t.Run(fmt.Sprintf("%dMi", mebibytes), func(t *testing.T) {
			config := b.Client.SandboxConfig("")
			limited(mebibytes << 20).Sandbox(config)
			_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config})
			testbed.Refused(t, err, codes.FailedPrecondition, fmt.Sprintf("a memory limit of %dMi", mebibytes), "24Mi", "raise the memory limits")
		})
	}
	t.Run("lowered before a container starts", func(t *testing.T) {
		p := b.Client.RunPod(t, limited(256<<20))
		parent := p.Config.GetLinux().GetCgroupParent()
		config := b.Client.ContainerConfig("late", b.Image, "sleep", "3600")
		id, err := p.TryCreate(t, config)
		testbed.Must(t, err)
		// The limit is lowered to 64 KiB above the current use.
		testbed.LimitMemory(t, parent, memoryUsage(t, parent)+64<<10)
		_, err = b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: id})
		testbed.Refused(t, err, codes.Unknown, "the pod ran into its memory limit", "24Mi", "raise the memory limits")
		p.Remove(t)
	})
	b.NothingLeft(t, atRest)
}

// memoryUsage returns the memory usage of a pod's cgroup.
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

// TestReleasesOfGVisor upgrades gVisor file by file while a pod runs. A regression test: berth once
// kept only the file runsc, so pods of a release with companion programs failed under a handler
// that was ready.
func TestReleasesOfGVisor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runsc := testbed.InstallRunsc(t, testbed.Runsc, dir)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"gvisor\"\n[handlers]\nprobe_interval = \"1s\"\n[runtimes.gvisor]\nruntime_path = %q\noptions.global_flags = [\"--sidecar-usage-policy=STRICT\"]\n", runsc)})
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}
	old := b.Client.RunPod(t, spec)
	works := func(when string) {
		t.Helper()
		more := old.RunContainer(t, "c-"+strings.ReplaceAll(when, " ", "-"), spec)
		for _, c := range []*testbed.Container{old.Container, more} {
			testbed.Same(t, c.Exec(t, "echo", "here"), "here\n", "%s: an exec in the old pod printed", when)
		}
	}
	handler := func() (state, reason string) {
		t.Helper()
		for _, h := range b.handlersInfo(t).Handlers {
			if h.Name == "gvisor" {
				return h.State, h.Reason
			}
		}
		return "absent", ""
	}
	notReady := func(when, reason string) {
		t.Helper()
		testbed.Eventually(t, time.Minute, func() error {
			if state, why := handler(); state != "not-ready" || !strings.Contains(why, reason) || !strings.Contains(why, runsc) {
				return fmt.Errorf("%s: gvisor is %s: %s", when, state, why)
			}
			return nil
		})
		_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
		testbed.Refused(t, err, codes.Unavailable, reason)
		works(when)
	}
	ready := func(when string) {
		t.Helper()
		testbed.Eventually(t, time.Minute, func() error {
			if state, why := handler(); state != "ready" {
				return fmt.Errorf("%s: gvisor is %s: %s", when, state, why)
			}
			return nil
		})
		works(when)
	}
	works("before the upgrade")
	put(t, runsc, read(t, testbed.Part(t, testbed.RunscOther)))
	notReady("only runsc replaced", "gvisor_sentry is of release")
	testbed.InstallRunsc(t, testbed.RunscOther, dir)
	ready("all files replaced")
	fresh := b.Client.RunPod(t, spec)
	testbed.Same(t, fresh.Container.Exec(t, "echo", "here"), "here\n", "an exec in a new pod printed")
	for _, name := range []string{"gvisor_sentry", "gvisor-sentry-prewarmer"} {
		testbed.Must(t, os.Remove(filepath.Join(dir, companions, name)))
		notReady("without "+name, name+" is missing")
		testbed.InstallRunsc(t, testbed.RunscOther, dir)
		ready("with " + name)
	}
	testbed.Must(t, os.RemoveAll(filepath.Join(dir, companions)))
	b.Restart(t)
	notReady("without companions", companions)
	old.Remove(t)
	fresh.Remove(t)
}
