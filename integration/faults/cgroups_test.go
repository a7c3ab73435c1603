package faults

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// named is a pod with a sandbox process and without a cgroup parent: its cgroups are below prefix.
type named struct {
	*testbed.Pod
	prefix     string
	containers []*testbed.Container
}

// cgroups returns the paths of the cgroups of the pod's sandbox process and containers.
func (p *named) cgroups() []string {
	all := []string{filepath.Join("/", p.prefix, p.ID)}
	for _, c := range p.containers {
		all = append(all, filepath.Join("/", p.prefix, c.ID))
	}
	return all
}

// exists returns whether a cgroup exists in any hierarchy.
func exists(t *testing.T, cgroup string) bool {
	t.Helper()
	v1, err := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
	testbed.Must(t, err)
	v2, err := filepath.Glob("/sys/fs/cgroup" + cgroup)
	testbed.Must(t, err)
	return len(v1)+len(v2) > 0
}

// TestCgroupPrefixChangesUnderPods changes engine.cgroup_prefix while pods run, and kills
// the daemon and its supervisors. Pods of both prefixes keep their cgroups, by which
// statistics, updates, OOM kills, cleanup and removal work.
func TestCgroupPrefixChangesUnderPods(t *testing.T) {
	const limit, raised = 32 << 20, 48 << 20
	const before, after = "berth", "cri-containerd"
	handlers := []string{"runc", "crun", "shim", "runsc"}
	b := newBed(t, testbed.Options{DefaultRuntime: "runc", Config: fmt.Sprintf("[runtimes.runc]\nruntime_path = %q\n[runtimes.crun]\nruntime_path = %q\n"+
		"[runtimes.runsc]\nruntime_path = %q\n[runtimes.shim]\nruntime_path = %q\noptions = { BinaryName = %q }\n",
		testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Crun), testbed.Part(t, testbed.Runsc), testbed.Part(t, testbed.RuncShim), testbed.Part(t, testbed.Runc))})
	t.Cleanup(func() { testbed.RemoveCgroup("/" + after) })
	atRest := b.Rest(t)
	spec := testbed.PodSpec{
		Image: b.Image, Command: []string{"sleep", "3600"},
		Sandbox: func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.CgroupParent = ""
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		},
		Container: func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			c.Linux.Resources.MemoryLimitInBytes = limit
		},
	}
	var pods []*named
	run := func(prefix string) {
		t.Helper()
		for _, handler := range handlers {
			spec := spec
			spec.Handler = handler
			p := b.Client.RunPod(t, spec)
			pods = append(pods, &named{Pod: p, prefix: prefix, containers: []*testbed.Container{p.Container}})
		}
		// In a pod with a cgroup parent the container's cgroup has no prefix: agents look for the
		// bare ID.
		p := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
		if cgroup := filepath.Join(p.Config.GetLinux().GetCgroupParent(), p.Container.ID); !exists(t, cgroup) {
			t.Errorf("with cgroup_prefix %s: cgroup %s of a pod with a parent does not exist", prefix, cgroup)
		}
	}
	run(before)
	b.prefix(t, after)
	run(after)

	bytes := int64(limit)
	holds := func(when string) {
		t.Helper()
		used, total := b.containerStats(t, time.Minute), b.podStats(t, time.Minute)
		for _, p := range pods {
			for _, cgroup := range p.cgroups() {
				if !exists(t, cgroup) {
					t.Errorf("%s: %s: cgroup %s does not exist", when, p.Handler, cgroup)
				}
			}
			for _, c := range p.containers {
				if used[c.ID].GetMemory().GetWorkingSetBytes().GetValue() == 0 {
					t.Errorf("%s: %s: a container under /%s has no memory statistics: %v", when, p.Handler, p.prefix, used[c.ID])
				}
				if pid := b.info(t, c.ID).PID; p.Handler != "runsc" && memoryLimit(t, pid) != strconv.FormatInt(bytes, 10) {
					t.Errorf("%s: %s: the memory limit of a container under /%s is %s, want %d", when, p.Handler, p.prefix, memoryLimit(t, pid), bytes)
				}
			}
			// The statistics of a pod without a parent are the sum of its cgroups, including the
			// cgroup of the sandbox process.
			linux := total[p.ID].GetLinux()
			processes := int(linux.GetProcess().GetProcessCount().GetValue())
			if linux.GetMemory().GetWorkingSetBytes().GetValue() == 0 || processes <= len(p.containers) && p.Handler != "runsc" {
				t.Errorf("%s: %s: the pod under /%s with %d containers has the statistics %v", when, p.Handler, p.prefix, len(p.containers), linux)
			}
		}
	}
	holds("with pods of both prefixes")

	for _, pid := range b.supervisors(t) {
		killAs(t, pid, syscall.SIGKILL)
	}
	b.Kill9(t)
	b.Start(t)
	holds("after kill -9")
	for _, p := range pods {
		p.containers = append(p.containers, p.RunContainer(t, "late", spec))
	}
	bytes = raised
	for _, p := range pods {
		if p.Handler == "runsc" {
			continue // gVisor cannot change limits
		}
		for _, c := range p.containers {
			_, err := b.Client.UpdateContainerResources(testbed.Within(t, time.Minute), &runtimeapi.UpdateContainerResourcesRequest{
				ContainerId: c.ID, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: raised},
			})
			testbed.Checkf(t, err, "%s: update", p.Handler)
		}
	}
	holds("with another container in each pod")

	for _, p := range pods {
		if p.Handler == "runsc" {
			continue // gVisor enforces only the limit of the pod
		}
		greedy := spec
		greedy.Command = []string{"tail", "/dev/zero"}
		c := p.RunContainer(t, "greedy", greedy)
		if st := c.WaitExit(t); st.GetReason() != "OOMKilled" {
			t.Errorf("%s: under /%s a container that is out of memory exited with %d, %s", p.Handler, p.prefix, st.GetExitCode(), st.GetReason())
		}
		c.Remove(t)
		if cgroup := filepath.Join("/", p.prefix, c.ID); exists(t, cgroup) {
			t.Errorf("%s: cgroup %s is left after the removal of its container", p.Handler, cgroup)
		}
	}
	for _, p := range pods {
		if p.Handler != "shim" {
			continue
		}
		killAs(t, processOf(t, p.ID, "containerd-shim-runc-v2", "-id"), syscall.SIGKILL)
		for _, c := range p.containers {
			if st := c.WaitExit(t); st.GetExitCode() != 137 {
				t.Errorf("a container under /%s whose shim died exited with %d, %s", p.prefix, st.GetExitCode(), st.GetMessage())
			}
		}
	}
	for _, p := range pods {
		p.Stop(t)
		p.Remove(t)
		if i := slices.IndexFunc(p.cgroups(), func(cgroup string) bool { return exists(t, cgroup) }); i >= 0 {
			t.Errorf("%s: cgroup %s is left after the removal of its pod", p.Handler, p.cgroups()[i])
		}
	}
	b.NothingLeft(t, atRest)
}

// prefix sets engine.cgroup_prefix by a reload, without a restart.
func (b *bed) prefix(t *testing.T, prefix string) {
	t.Helper()
	pid := b.PID()
	b.DropIn(t, "60-prefix", fmt.Sprintf("[engine]\ncgroup_prefix = %q\n", prefix))
	reload := exec.CommandContext(t.Context(), filepath.Join(b.Bin, "berth"), "reload", "--wait", "--admin-socket", filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	if out, err := reload.CombinedOutput(); err != nil {
		t.Fatalf("reload: %v\n%s", err, out)
	}
	if b.PID() != pid || !b.Running() {
		t.Fatal("the daemon was restarted")
	}
}
