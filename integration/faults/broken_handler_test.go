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
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// degradedBy returns the lines in the status about what is degraded.
func (b *bed) degradedBy(t *testing.T) string {
	t.Helper()
	c := b.admin(t)
	status, err := c.GetStatus(testbed.Within(t, time.Minute), &adminv1.GetStatusRequest{})
	testbed.Must(t, err)
	return strings.Join(status.GetDegraded(), "\n")
}

// broken is a handler with the functions that break and repair it.
type broken struct {
	handler string
	broke   func(t *testing.T)
	mend    func(t *testing.T)
	// says are texts that the status has within ten seconds of the second failed pod.
	says []string
	// start starts a pod that fails while the handler is broken; nil starts a plain sandbox.
	start func(t *testing.T) error
}

// TestBrokenHandlers breaks handlers. Some of the runtimes still answer probes, others are gone or
// damaged. A regression test: the status once reported no failure while every pod failed.
func TestBrokenHandlers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runc := read(t, testbed.Part(t, testbed.Runc))
	config := "default_runtime = \"fails\"\n"
	var all []broken
	add := func(handler, path string, says string, broke, mend func(t *testing.T)) {
		config += fmt.Sprintf("[runtimes.%s]\nruntime_path = %q\nsandbox_process = \"always\"\ncontainer_create_timeout = \"3s\"\n", handler, path)
		all = append(all, broken{handler: handler, broke: broke, mend: mend, says: []string{"handler " + handler + " is not ready: ", says}})
	}
	fails, hangs := newScripted(t), newScripted(t)
	add("fails", fails.Path, "it cannot be done",
		func(t *testing.T) {
			t.Helper()
			fails.on(t, "run", "echo 'it lacks a part' >&2; echo 'it cannot be done' >&2; exit 1")
		},
		func(t *testing.T) { t.Helper(); fails.on(t, "run", "") })
	add("hangs", hangs.Path, "timed out",
		func(t *testing.T) { t.Helper(); hangs.on(t, "run", "exec sleep 1000") },
		func(t *testing.T) { t.Helper(); hangs.on(t, "run", "") })
	// containerd's shim calls create of its runtime, not run.
	creates := newScripted(t)
	add("creates", testbed.Part(t, testbed.RuncShim), "OCI runtime create failed",
		func(t *testing.T) { t.Helper(); creates.on(t, "create", "echo 'no container today' >&2; exit 1") },
		func(t *testing.T) { t.Helper(); creates.on(t, "create", "") })
	config += fmt.Sprintf("options = { BinaryName = %q }\n", creates.Path)
	for name, change := range map[string]struct {
		says   string
		change func(path string) error
	}{
		"gone": {"does not exist; install it", os.Remove},
		"mode": {"not executable", func(path string) error { return os.Chmod(path, 0o644) }},
		"alien": {"exec format error", func(path string) error {
			return os.WriteFile(path, append([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0xf3, 0}, runc[20:]...), 0o755)
		}}, //nolint:gosec // it is a program
		"empty": {"exec format error", func(path string) error { return os.Truncate(path, 0) }},
	} {
		path := filepath.Join(dir, name)
		put(t, path, runc)
		add(name, path, change.says, func(t *testing.T) {
			t.Helper()
			testbed.Must(t, change.change(path))
		}, func(t *testing.T) { t.Helper(); put(t, path, runc) })
	}
	b := newBed(t, testbed.Options{Config: config})
	for _, one := range all {
		t.Run(one.handler, func(t *testing.T) { b.breaks(t, one) })
	}
	// The status has only the last line of the runtime's output, the handler's details have all.
	c := b.admin(t)
	shown, err := c.GetHandler(t.Context(), &adminv1.GetHandlerRequest{Name: "fails"})
	if got := shown.GetLastFailure(); err != nil || !strings.Contains(got, "it lacks a part\nit cannot be done\n") {
		t.Errorf("the last failure does not have the whole output: %v, %s", err, got)
	}
}

// startContainer starts a container in a new pod, and removes the pod.
func (b *bed) startContainer(t *testing.T, handler string, change func(*runtimeapi.PodSandboxConfig, *runtimeapi.ContainerConfig)) error {
	t.Helper()
	b.Client.Pull(t, handler, b.Image)
	config := b.Client.ContainerConfig("c", b.Image, "sleep", "1000")
	pod := b.Client.RunSandbox(t, testbed.PodSpec{Handler: handler, Sandbox: func(pod *runtimeapi.PodSandboxConfig) { change(pod, config) }})
	defer pod.Remove(t)
	made, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.ID, Config: config, SandboxConfig: pod.Config,
	})
	if err != nil {
		return err
	}
	_, err = b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()})
	return err
}

// startSandbox runs a pod without containers and stops it.
func (b *bed) startSandbox(t *testing.T, handler string, config *runtimeapi.PodSandboxConfig) error {
	t.Helper()
	pod, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		return err
	}
	_, err = b.Client.StopPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.GetPodSandboxId()})
	return err
}

// breaks breaks a handler, waits until the status reports the failure, and repairs the handler.
func (b *bed) breaks(t *testing.T, one broken) {
	t.Helper()
	start := one.start
	if start == nil {
		start = func(t *testing.T) error { return b.startSandbox(t, one.handler, b.Client.SandboxConfig("")) }
	}
	testbed.Must(t, start(t))
	one.broke(t)
	for range 2 {
		if start(t) == nil {
			t.Fatal("a pod started under the broken handler")
		}
	}
	testbed.Eventually(t, 10*time.Second, func() error {
		told := b.degradedBy(t)
		for _, word := range one.says {
			if !strings.Contains(told, word) {
				return fmt.Errorf("the status does not contain %q: %s", word, told)
			}
		}
		return nil
	})
	b.kubeletSees(t, one, false)
	one.mend(t)
	testbed.Eventually(t, time.Minute, func() error { return start(t) })
	b.kubeletSees(t, one, true)
}

// kubeletSees waits until the condition HandlersReady of the CRI's Status names the handler, or, if
// ready, does not name it.
func (b *bed) kubeletSees(t *testing.T, one broken, ready bool) {
	t.Helper()
	if !strings.Contains(one.says[0], "is not ready") {
		return // the handler stays ready: its self-check pod runs
	}
	testbed.Eventually(t, time.Minute, func() error {
		status, err := b.Client.RuntimeServiceClient.Status(testbed.Within(t, time.Minute), &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, c := range status.GetStatus().GetConditions() {
			if c.GetType() == "HandlersReady" && strings.Contains(c.GetMessage(), strconv.Quote(one.handler)) == ready {
				return fmt.Errorf("the condition is %v", c)
			}
		}
		return nil
	})
}

// TestRuntimeThatHangs: if a runtime hangs, starts fail after start_timeout, which is shorter than
// container_create_timeout, and the status reports the handler.
func TestRuntimeThatHangs(t *testing.T) {
	t.Parallel()
	hangs := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf("default_runtime = \"slow\"\n[runtimes.slow]\nruntime_path = %q\nsandbox_process = \"always\"\nstart_timeout = \"8s\"\nself_check_timeout = \"10s\"\n", hangs.Path)})
	b.breaks(t, broken{
		handler: "slow",
		broke:   func(t *testing.T) { t.Helper(); hangs.on(t, "run", "exec sleep 1000") },
		mend:    func(t *testing.T) { t.Helper(); hangs.on(t, "run", "") },
		says:    []string{"handler slow is not ready: ", "self-check pod has not finished"},
		start: func(t *testing.T) error {
			t.Helper()
			began := time.Now()
			err := b.startSandbox(t, "slow", b.Client.SandboxConfig(""))
			if took := time.Since(began); status.Code(err) == codes.DeadlineExceeded && (took > 40*time.Second || !strings.Contains(err.Error(), "start_timeout = 8s")) {
				t.Errorf("the start failed after %v, want start_timeout = 8s: %v", took, err)
			}
			return err
		},
	})
}

// TestNetworkThatFails breaks the network, which self-check pods do not use: the handler stays
// ready, but the status reports that its starts fail.
func TestNetworkThatFails(t *testing.T) {
	t.Parallel()
	plugins, err := filepath.Glob(filepath.Join(testbed.NewCNI(t).BinDir, "*"))
	testbed.Must(t, err)
	dir := t.TempDir()
	for _, plugin := range plugins {
		testbed.Must(t, os.Symlink(plugin, filepath.Join(dir, filepath.Base(plugin))))
	}
	b := newBed(t, testbed.Options{Config: fmt.Sprintf("[cni]\nbin_dirs = [%q]\n", dir)})
	bridge := filepath.Join(dir, "bridge")
	b.breaks(t, broken{
		handler: "runc",
		broke: func(t *testing.T) {
			t.Helper()
			testbed.Must(t, os.Rename(bridge, bridge+".away"))
		},
		mend: func(t *testing.T) {
			t.Helper()
			testbed.Must(t, os.Rename(bridge+".away", bridge))
		},
		says: []string{"handler runc", "starts in a row failed", "bridge"},
	})
}

// TestDiskThatIsFull fills the disk of engine.root: the status reports the failing starts.
func TestDiskThatIsFull(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{})
	disk := b.smallRoot(t, 48<<20)
	b.breaks(t, broken{
		handler: "runc", broke: disk.fill, mend: disk.empty,
		says: []string{"handler runc", "no space left"},
	})
}

// TestCgroupThatIsRefused has the kernel refuse the CPU limit of a container: the status reports
// the failing starts.
func TestCgroupThatIsRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{})
	parent := fmt.Sprintf("/berth-refused-%d", time.Now().UnixNano())
	quota := filepath.Join("/sys/fs/cgroup/cpu", parent, "cpu.cfs_quota_us")
	testbed.Must(t, os.Mkdir(filepath.Dir(quota), 0o755))
	t.Cleanup(func() { testbed.RemoveCgroup(parent) })
	write := func(text string) func(t *testing.T) {
		return func(t *testing.T) {
			t.Helper()
			// The write fails while the previous container's cgroup, with a larger quota, exists.
			testbed.Eventually(t, 10*time.Second, func() error { return os.WriteFile(quota, []byte(text), 0) })
		}
	}
	b.breaks(t, broken{
		handler: "runc",
		// The CPU quota of a cgroup must not exceed that of its parent.
		broke: write("10000"), mend: write("-1"),
		says: []string{"handler runc", "starts in a row failed", "cpu.cfs_quota_us"},
		start: func(t *testing.T) error {
			t.Helper()
			return b.startContainer(t, "runc", func(pod *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) {
				pod.Linux.CgroupParent = parent
				c.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 100000}
			})
		},
	})
}
