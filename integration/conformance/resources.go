package conformance

import (
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

var resourceChecks = []check{
	{name: "limits are in status and in the cgroup", needs: []Ability{CgroupPerCtr}, run: limitsApplied},
	{name: "limits are in status", run: limitsEchoed},
	{name: "update of a running container", needs: []Ability{LiveUpdate, CgroupPerCtr}, run: updateRunning},
	{name: "an update leaves alone what is zero", needs: []Ability{LiveUpdate}, run: updateZeroFields},
	{name: "update of a created container holds at start", needs: []Ability{CgroupPerCtr}, run: updateCreated},
	{name: "an update that the kernel refuses changes nothing", needs: []Ability{LiveUpdate, CgroupPerCtr}, run: updateRefused},
	{name: "an update that the runtime cannot make is refused once", berth: true, run: updateImpossible},
	{name: "swap", needs: []Ability{CgroupPerCtr}, run: swapLimits},
	{name: "huge pages", needs: []Ability{CgroupPerCtr}, run: hugePages},
	{name: "the cgroup parent is used and left alone", needs: []Ability{HostProcesses}, run: cgroupParent},
	{name: "oom_score_adj", needs: []Ability{HostProcesses}, run: oomScoreAdj},
}

func someLimits() *runtimeapi.LinuxContainerResources {
	return &runtimeapi.LinuxContainerResources{
		CpuPeriod: 100000, CpuQuota: 20000, CpuShares: 512, MemoryLimitInBytes: 64 << 20,
	}
}

// cgroupValue reads a file of the container's own cgroup on the host. Its name depends on the
// cgroup version.
func cgroupValue(t *testing.T, c *container, v1, v2 string) string {
	t.Helper()
	pid := hostPID(t, c)
	b, err := os.ReadFile("/proc/" + pid + "/cgroup")
	must(t, err, "cgroup of the container's process")
	controller, _, _ := strings.Cut(v1, ".")
	for _, l := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		f := strings.SplitN(l, ":", 3)
		if contains(strings.Split(f[1], ","), controller) {
			return firstFile(t, filepath.Join("/sys/fs/cgroup", controller, f[2], v1))
		}
	}
	for _, l := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if path, ok := strings.CutPrefix(l, "0::"); ok {
			return firstFile(t, filepath.Join("/sys/fs/cgroup", path, v2))
		}
	}
	t.Fatalf("process %s is in no cgroup of %s:\n%s", pid, controller, b)
	return ""
}

func firstFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err, "cgroup file")
	return strings.TrimSpace(string(b))
}

// hostPID finds the container's program on the host: the process 1 of the container's pid
// namespace.
func hostPID(t *testing.T, c *container) string {
	t.Helper()
	ns := c.line(t, "readlink", "/proc/1/ns/pid")
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err, "processes")
	for _, d := range dirs {
		link, err := os.Readlink(d + "/ns/pid")
		if err != nil || link != ns {
			continue
		}
		b, _ := os.ReadFile(d + "/status")
		for _, l := range strings.Split(string(b), "\n") {
			if v, ok := strings.CutPrefix(l, "NSpid:"); ok {
				if f := strings.Fields(v); len(f) > 1 && f[len(f)-1] == "1" {
					return filepath.Base(d)
				}
			}
		}
	}
	t.Fatalf("no process on the host is process 1 of %s", ns)
	return ""
}

func limitsApplied(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), resources(someLimits()))
	wantCgroup(t, c, someLimits())
}

// wantCgroup compares the cgroup with the limits that must be in force.
func wantCgroup(t *testing.T, c *container, want *runtimeapi.LinuxContainerResources) {
	t.Helper()
	if got := cgroupValue(t, c, "memory.limit_in_bytes", "memory.max"); got != strconv.FormatInt(want.GetMemoryLimitInBytes(), 10) {
		t.Errorf("memory limit is %s, want %d", got, want.GetMemoryLimitInBytes())
	}
	quota := cgroupValue(t, c, "cpu.cfs_quota_us", "cpu.max")
	if q := strings.Fields(quota)[0]; q != strconv.FormatInt(want.GetCpuQuota(), 10) {
		t.Errorf("cpu quota is %s, want %d", quota, want.GetCpuQuota())
	}
}

func limitsEchoed(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.create(t, forever(), resources(someLimits()))
	wantLimits(t, c, someLimits())
	must(t, c.tryStart(t), "StartContainer")
	wantLimits(t, c, someLimits())
}

// wantLimits compares the fields by which the kubelet sees that a resize is done.
func wantLimits(t *testing.T, c *container, want *runtimeapi.LinuxContainerResources) {
	t.Helper()
	got := c.status(t).GetResources().GetLinux()
	if got.GetCpuPeriod() != want.GetCpuPeriod() || got.GetCpuQuota() != want.GetCpuQuota() ||
		got.GetCpuShares() != want.GetCpuShares() || got.GetMemoryLimitInBytes() != want.GetMemoryLimitInBytes() {
		t.Errorf("status says %v, want %v", got, want)
	}
}

func (c *container) tryUpdate(t *testing.T, r *runtimeapi.LinuxContainerResources) error {
	t.Helper()
	_, err := c.Runtime.UpdateContainerResources(call(t), &runtimeapi.UpdateContainerResourcesRequest{ContainerId: c.ID, Linux: r})
	return err
}

func updateRunning(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), resources(someLimits()))
	next := someLimits()
	next.CpuQuota, next.CpuShares, next.MemoryLimitInBytes = 40000, 1024, 128<<20
	must(t, c.tryUpdate(t, next), "UpdateContainerResources")
	wantLimits(t, c, next)
	wantCgroup(t, c, next)
	testbed.Same(t, c.line(t, "echo", "alive"), "alive", "exec printed")
	must(t, c.tryUpdate(t, someLimits()), "UpdateContainerResources back")
	wantLimits(t, c, someLimits())
	wantCgroup(t, c, someLimits())
}

func updateZeroFields(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), resources(someLimits()))
	must(t, c.tryUpdate(t, &runtimeapi.LinuxContainerResources{CpuShares: 2048}), "UpdateContainerResources")
	want := someLimits()
	want.CpuShares = 2048
	wantLimits(t, c, want)
	// The kubelet's CPU manager sends an update with only this field.
	must(t, c.tryUpdate(t, &runtimeapi.LinuxContainerResources{CpusetCpus: "0"}), "UpdateContainerResources")
	want.CpusetCpus = "0"
	wantLimits(t, c, want)
	testbed.Same(t, c.status(t).GetResources().GetLinux().GetCpusetCpus(), "0", "status says CPUs")
	if _, lacks := n.Lacks[CgroupPerCtr]; !lacks {
		wantCgroup(t, c, want)
	}
}

func updateCreated(t *testing.T, n *node) {
	c := n.pod(t).create(t, forever(), resources(someLimits()))
	next := someLimits()
	next.CpuQuota, next.MemoryLimitInBytes = 50000, 96<<20
	must(t, c.tryUpdate(t, next), "UpdateContainerResources of a CREATED container")
	wantLimits(t, c, next)
	must(t, c.tryStart(t), "StartContainer")
	wantLimits(t, c, next)
	wantCgroup(t, c, next)
}

func updateRefused(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), resources(someLimits()))
	mustFail(t, c.tryUpdate(t, &runtimeapi.LinuxContainerResources{CpusetCpus: "4000-4001"}), "UpdateContainerResources with CPUs that do not exist")
	wantLimits(t, c, someLimits())
	wantCgroup(t, c, someLimits())
	if got := c.status(t).GetResources().GetLinux().GetCpusetCpus(); got == "4000-4001" {
		t.Error("status shows the refused value")
	}
}

// updateImpossible requests an update that the runtime does not have. Nothing was changed, so the
// error must not mention restoring.
func updateImpossible(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), resources(someLimits()))
	mustFail(t, c.tryUpdate(t, nil), "UpdateContainerResources without linux", codes.InvalidArgument)
	err := c.tryUpdate(t, &runtimeapi.LinuxContainerResources{CpuShares: 1024})
	if _, lacks := n.Lacks[LiveUpdate]; !lacks {
		must(t, err, "UpdateContainerResources")
		return
	}
	mustFail(t, err, "UpdateContainerResources under a runtime without it", codes.Unimplemented)
	if text := status.Convert(err).Message(); strings.Contains(text, "could not be restored") {
		t.Errorf("the error mentions more than the update: %s", text)
	}
	wantLimits(t, c, someLimits())
}

// swapLimits checks memory_swap_limit_in_bytes, which limits memory and swap together. If only
// memory is limited, the container must not swap.
func swapLimits(t *testing.T, n *node) {
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err == nil {
		if _, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"); err != nil {
			t.Skip("this kernel does not count swap (swapaccount=1)")
		}
	}
	const memory = 64 << 20
	p := n.pod(t)
	for together, swap := range map[int64]int64{0: 0, memory: 0, memory + 32<<20: 32 << 20} {
		c := p.start(t, forever(), resources(&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: memory, MemorySwapLimitInBytes: together}))
		got := cgroupValue(t, c, "memory.memsw.limit_in_bytes", "memory.swap.max")
		if got != strconv.FormatInt(memory+swap, 10) && got != strconv.FormatInt(swap, 10) {
			t.Errorf("with a limit of %d for both the cgroup says %s", together, got)
		}
	}
}

// hugePages limits every size that the host has, as a kubelet does.
func hugePages(t *testing.T, n *node) {
	dirs, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	must(t, err, "sizes of huge pages")
	if len(dirs) == 0 {
		t.Skip("the host's kernel has no huge pages")
	}
	want := map[string]string{}
	limits := someLimits()
	for i, d := range dirs {
		kilobytes, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(d), "hugepages-"), "kB"), 10, 64)
		must(t, err, "size of huge pages")
		size := map[bool]string{true: strconv.FormatUint(kilobytes>>20, 10) + "GB", false: strconv.FormatUint(kilobytes>>10, 10) + "MB"}[kilobytes >= 1<<20]
		limit := uint64(i) * kilobytes << 10
		limits.HugepageLimits = append(limits.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: size, Limit: limit})
		want[size] = strconv.FormatUint(limit, 10)
	}
	c := n.pod(t).start(t, forever(), resources(limits))
	for size, limit := range want {
		testbed.Same(t, cgroupValue(t, c, "hugetlb."+size+".limit_in_bytes", "hugetlb."+size+".max"), limit, "the limit of pages of %s is", size)
	}
	if got := c.status(t).GetResources().GetLinux().GetHugepageLimits(); len(got) != len(limits.GetHugepageLimits()) {
		t.Errorf("status says %v, want %v", got, limits.GetHugepageLimits())
	}
}

// cgroupParent makes the pod's cgroup as a kubelet with the cgroupfs driver
// does, and checks that containers are placed below it and nothing else happens
// to it.
func cgroupParent(t *testing.T, n *node) {
	r, err := n.Runtime.RuntimeConfig(call(t), &runtimeapi.RuntimeConfigRequest{})
	must(t, err, "RuntimeConfig")
	if r.GetLinux().GetCgroupDriver() != runtimeapi.CgroupDriver_CGROUPFS {
		t.Skip("the endpoint uses the systemd driver: the parent is a slice of systemd's")
	}
	name := "/conformance-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	root := "/sys/fs/cgroup/memory"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	dir := root + name
	must(t, os.Mkdir(dir, 0o755), "cgroup of the pod")
	t.Cleanup(func() { removeCgroups(t, name) })
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = name })
	c := p.start(t, forever())
	b, err := os.ReadFile("/proc/" + hostPID(t, c) + "/cgroup")
	must(t, err, "cgroup of the container's process")
	if !strings.Contains(string(b), name+"/"+c.ID) && !strings.Contains(string(b), name+"/") {
		t.Errorf("the container is not below %s:\n%s", name, b)
	}
	p.stop(t)
	p.remove(t)
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the kubelet's cgroup was removed: %v", err)
	}
	left, _ := filepath.Glob(dir + "/*/")
	testbed.Empty(t, left, "cgroups left behind")
}

// removeCgroups removes the pod's cgroup from every hierarchy, as a kubelet does.
func removeCgroups(t *testing.T, name string) {
	t.Helper()
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*" + name)
	for _, d := range append(dirs, "/sys/fs/cgroup"+name) {
		if err := os.Remove(d); err != nil && !os.IsNotExist(err) {
			t.Errorf("remove cgroup: %v", err)
		}
	}
}

// oomScoreAdj only raises the value: a lower value needs a privilege that a test may not have.
func oomScoreAdj(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), resources(&runtimeapi.LinuxContainerResources{OomScoreAdj: 987}))
	testbed.Same(t, c.line(t, "cat", "/proc/1/oom_score_adj"), "987", "oom_score_adj is")
}
