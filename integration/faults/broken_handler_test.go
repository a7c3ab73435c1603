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

// degradedBy are the lines of the status.
func (b *bed) degradedBy(t *testing.T) string {
	t.Helper()
	c := b.admin(t)
	status, err := c.GetStatus(testbed.Within(t, time.Minute), &adminv1.GetStatusRequest{})
	testbed.Must(t, err)
	return strings.Join(status.GetDegraded(), "\n")
}

// broken is a handler that was broken while it was ready.
type broken struct {
	handler string
	broke   func(t *testing.T)
	mend    func(t *testing.T)
	// says is what the status says of it within ten seconds of the second failed pod.
	says []string
	// start starts what fails, if that is not a sandbox of the handler.
	start func(t *testing.T) error
}

// TestBrokenHandlers breaks handlers whose runtimes go on answering questions, or are gone.
// Once the status stayed green while every pod failed.
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
	// A shim has its runtime create sandboxes.
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
	// The state has the last line that the runtime wrote, and the details the rest.
	c := b.admin(t)
	shown, err := c.GetHandler(t.Context(), &adminv1.GetHandlerRequest{Name: "fails"})
	if got := shown.GetLastFailure(); err != nil || !strings.Contains(got, "it lacks a part\nit cannot be done\n") {
		t.Errorf("%v, %s", err, got)
	}
}

// startContainer runs a pod with a container and removes it.
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

// breaks breaks a handler under pods, waits until the status says so, and mends it.
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
			t.Fatal("a pod runs")
		}
	}
	testbed.Eventually(t, 10*time.Second, func() error {
		told := b.degradedBy(t)
		for _, word := range one.says {
			if !strings.Contains(told, word) {
				return fmt.Errorf("the status lacks %q: %s", word, told)
			}
		}
		return nil
	})
	b.kubeletSees(t, one, false)
	one.mend(t)
	testbed.Eventually(t, time.Minute, func() error { return start(t) })
	b.kubeletSees(t, one, true)
}

// kubeletSees fails unless the condition of the CRI's Status names the handler if it is not ready.
func (b *bed) kubeletSees(t *testing.T, one broken, ready bool) {
	t.Helper()
	if !strings.Contains(one.says[0], "is not ready") {
		return // its runtime runs pods
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

// TestRuntimeThatHangs has callers that give up before container_create_timeout: they are
// answered in time, and the status says so.
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
				t.Errorf("after %v: %v", took, err)
			}
			return err
		},
	})
}

// TestNetworkThatFails has pods fail for what a self-check pod does not have: the handler
// is ready, and the status says that its starts fail.
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

// TestDiskThatIsFull is the same for the disk of engine.root.
func TestDiskThatIsFull(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{})
	disk := b.smallRoot(t, 48<<20)
	b.breaks(t, broken{
		handler: "runc", broke: disk.fill, mend: disk.empty,
		says: []string{"handler runc", "no space left"},
	})
}

// TestCgroupThatIsRefused is the same for a kernel that refuses the limits of a container.
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
			// The cgroup of the container before may not be gone yet, and has more.
			testbed.Eventually(t, 10*time.Second, func() error { return os.WriteFile(quota, []byte(text), 0) })
		}
	}
	b.breaks(t, broken{
		handler: "runc",
		// A cgroup may not have more of the processor than the one above it.
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
