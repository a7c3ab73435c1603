package wasm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/testbed"
)

func TestWasm(t *testing.T) {
	t.Parallel()
	b, _ := berthBed(t, shims.Wasm{}, testbed.Options{}, `platform = "wasi/wasm"`)
	t.Run("layer", b.layer)
	t.Run("file", b.file)
	t.Run("linux beside a module", b.mixed)
	t.Run("statistics", b.statistics)
	t.Run("host network", b.hostNetwork)
	t.Run("exec", b.noExec)
	t.Run("restart", b.restart)
	t.Run("precompiled", b.precompiled)
}

// layer runs an image whose only layer is the module.
func (b *bed) layer(t *testing.T) {
	image := testbed.WasmLayer(t, module(t), testbed.WasmConfigured(func(c *v1.Config) {
		c.Entrypoint, c.Env, c.Cmd = []string{"/"}, []string{"GREETING=hello"}, []string{"exit", "3"}
	}))
	reference, id := b.push(t, "wasm/layer:1", image)
	if b.image(t, handler, reference).GetId() != id {
		t.Errorf("%s is not image %s", reference, id)
	}
	ended, said := b.run(t, testbed.PodSpec{Image: reference})
	if ended.GetExitCode() != 3 || said != "stdout args / exit 3\nstdout greeting hello\n" {
		t.Errorf("the module exited with %d, and wrote %q", ended.GetExitCode(), said)
	}
	ended, said = b.run(t, testbed.PodSpec{Image: reference, Command: []string{"/"}, Args: []string{"say", "an-error", "exit", "0"}, Container: func(c *runtimeapi.ContainerConfig) {
		c.Envs = []*runtimeapi.KeyValue{{Key: "GREETING", Value: []byte("bye")}}
	}})
	if ended.GetExitCode() != 0 || !strings.Contains(said, "stderr an-error\n") || !strings.Contains(said, "stdout greeting bye\n") {
		t.Errorf("the module exited with %d, and wrote %q", ended.GetExitCode(), said)
	}
}

// file runs an image whose module is a file of an ordinary layer, named by the entrypoint.
func (b *bed) file(t *testing.T) {
	reference, _ := b.push(t, "wasm/file:1", testbed.WasmFile(t, module(t)))
	dir := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "note"), []byte("of a volume"), 0o600))
	ended, said := b.run(t, testbed.PodSpec{Image: reference, Args: []string{"cat", "/volume/note", "exit", "4"}, Container: func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: "/volume"}}
	}})
	if ended.GetExitCode() != 4 || !strings.Contains(said, "stdout file of a volume <nil>\n") {
		t.Errorf("the module exited with %d, and wrote %q", ended.GetExitCode(), said)
	}
}

// mixed runs a sandbox, whose process is a Linux program under the same shim.
func (b *bed) mixed(t *testing.T) {
	pod := b.Client.RunSandbox(t, testbed.PodSpec{Handler: handler})
	if got := pod.Status(t); got.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || got.GetNetwork().GetIp() == "" {
		t.Errorf("the sandbox is %v, want ready with an address", got)
	}
}

// stay runs a module that uses the CPU for a moment, and then runs on.
func (b *bed) stay(t *testing.T, spec testbed.PodSpec) *testbed.Pod {
	t.Helper()
	reference, _ := b.push(t, "wasm/stay:1", testbed.WasmLayer(t, module(t), testbed.WasmConfigured(func(c *v1.Config) {
		c.Entrypoint, c.Cmd = []string{"/"}, []string{"work", "stay"}
	})))
	spec.Handler, spec.Image = handler, reference
	pod := b.Client.RunPod(t, spec)
	says(t, pod.Container, "staying")
	return pod
}

// statistics waits until a container has the statistics of the process that runs its module.
func (b *bed) statistics(t *testing.T) {
	pod := b.stay(t, testbed.PodSpec{})
	testbed.Eventually(t, patience, func() error {
		r, err := b.Client.ContainerStats(testbed.Within(t, patience), &runtimeapi.ContainerStatsRequest{ContainerId: pod.Container.ID})
		if err != nil {
			return err
		}
		cpu, memory := r.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue(), r.GetStats().GetMemory().GetWorkingSetBytes().GetValue()
		if cpu < 100e6 || memory < 1<<20 {
			return fmt.Errorf("the statistics are %d ns and %d bytes", cpu, memory)
		}
		return nil
	})
}

// hostNetwork checks that the process of a module is in the node's network.
func (b *bed) hostNetwork(t *testing.T) {
	pod := b.stay(t, testbed.PodSpec{Sandbox: func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		c.Hostname = ""
	}, Container: func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	}})
	own, err := os.Readlink("/proc/self/ns/net")
	testbed.Must(t, err)
	found := 0
	for _, pid := range modulesIn(t, pod.Config.GetLinux().GetCgroupParent()) {
		found++
		if ns, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "ns/net")); err != nil || ns != own {
			t.Errorf("the module's process is in network namespace %s, want %s: %v", ns, own, err)
		}
	}
	if found == 0 {
		t.Error("no process of the pod's cgroup runs a module")
	}
}

// modulesIn returns the processes below a cgroup that run modules.
func modulesIn(t *testing.T, cgroup string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	testbed.Must(t, err)
	for _, dir := range all {
		in, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || !strings.Contains(string(in), cgroup) {
			continue
		}
		if line, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil && strings.HasPrefix(string(line), "/.wasm-shim\x00module\x00") {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// noExec checks that an exec is refused as not supported, and leaves the container running.
func (b *bed) noExec(t *testing.T) {
	pod := b.stay(t, testbed.PodSpec{})
	err := b.exec(testbed.Within(t, patience), pod.Container)
	if err == nil || !strings.Contains(status.Convert(err).Message(), "not supported") {
		t.Errorf("exec: %v, want not supported", err)
	}
	if got := pod.Container.Status(t).GetState(); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %s, want running", got)
	}
}

// restart restarts the daemon while a module runs. The module runs on, and can be stopped.
func (b *bed) restart(t *testing.T) {
	pod := b.stay(t, testbed.PodSpec{})
	before := modulesIn(t, pod.Config.GetLinux().GetCgroupParent())
	b.Restart(t)
	if after := modulesIn(t, pod.Config.GetLinux().GetCgroupParent()); len(after) == 0 || !slices.Equal(before, after) {
		t.Errorf("the module's processes were %v and are %v", before, after)
	}
	if got := pod.Container.Status(t).GetState(); got != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %s, want running", got)
	}
	pod.Container.Stop(t, patience)
	if got := pod.Container.Status(t); got.GetExitCode() != 143 {
		t.Errorf("the module exited with %d, want 143", got.GetExitCode())
	}
}

// precompiled checks that a compiled module is stored with its image and used again, survives a
// restart of the daemon, and is removed with the image.
func (b *bed) precompiled(t *testing.T) {
	// A custom section makes this module differ from those that other tests had compiled.
	other := append(slices.Clone(module(t)), 0, 3, 1, 'x', 0)
	before := b.compiled(t)
	// Compiled modules of other tests do not count.
	added := func() []string {
		return slices.DeleteFunc(b.compiled(t), func(d string) bool { return slices.Contains(before, d) })
	}
	reference, id := b.push(t, "wasm/precompiled:1", testbed.WasmLayer(t, other, testbed.WasmConfigured(func(c *v1.Config) {
		c.Entrypoint, c.Cmd = []string{"/"}, []string{"exit", "0"}
	})))
	for range 2 {
		if ended, said := b.run(t, testbed.PodSpec{Image: reference}); ended.GetExitCode() != 0 {
			t.Fatalf("the module exited with %d, and wrote %q", ended.GetExitCode(), said)
		}
		if after := added(); len(after) != 1 {
			t.Fatalf("the compiled modules are %v, want one", after)
		}
	}
	b.Restart(t)
	if after := added(); len(after) != 1 {
		t.Errorf("after a restart the compiled modules are %v, want one", after)
	}
	if got := b.image(t, handler, reference).GetId(); got != id {
		t.Errorf("after a restart %s is image %q, not %s", reference, got, id)
	}
	b.remove(t, id)
	testbed.Eventually(t, patience, func() error {
		if after := added(); len(after) != 0 {
			return fmt.Errorf("compiled modules of a removed image are left: %v", after)
		}
		return nil
	})
}
