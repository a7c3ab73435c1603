package kubelet

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// PodCgroup is the path of a pod's cgroup in every hierarchy.
func (c *Cluster) PodCgroup(pod *corev1.Pod) string {
	class := map[corev1.PodQOSClass]string{corev1.PodQOSBestEffort: "besteffort", corev1.PodQOSBurstable: "burstable"}[pod.Status.QOSClass]
	if !testbed.SystemdCgroups() {
		return filepath.Join(c.machine.Cgroup, "kubepods", class, "pod"+string(pod.UID))
	}
	// The name of a slice begins with the name of its parent and a dash.
	slice := "kubepods"
	path := "/" + slice + ".slice"
	for _, part := range []string{class, "pod" + strings.ReplaceAll(string(pod.UID), "-", "_")} {
		if part != "" {
			slice += "-" + part
			path = filepath.Join(path, slice+".slice")
		}
	}
	return path
}

// ContainerCgroup is the path of a container's cgroup in every hierarchy.
func (c *Cluster) ContainerCgroup(pod *corev1.Pod, status corev1.ContainerStatus) string {
	name := containerID(status)
	if testbed.SystemdCgroups() {
		name = "berth-" + name + ".scope"
	}
	return filepath.Join(c.PodCgroup(pod), name)
}

// within is the cgroup that crun makes below the scope of a container, if it exists: later updates
// change this cgroup.
func within(cgroup string) string {
	if inner := filepath.Join(cgroup, "container"); exists(filepath.Join("/sys/fs/cgroup", inner)) {
		return inner
	}
	return cgroup
}

// MemoryLimit is a cgroup's memory limit in bytes.
func MemoryLimit(t testbed.T, cgroup string) int {
	t.Helper()
	return numbers(t, filepath.Join("/sys/fs/cgroup/memory", cgroup, "memory.limit_in_bytes"), filepath.Join("/sys/fs/cgroup", within(cgroup), "memory.max"))[0]
}

// CPULimit returns the CPU time that a cgroup may use in a period, and the period, in µs.
func CPULimit(t testbed.T, cgroup string) (quota, period int) {
	t.Helper()
	if v2 := filepath.Join("/sys/fs/cgroup", within(cgroup), "cpu.max"); exists(v2) {
		both := numbers(t, v2)
		return both[0], both[1]
	}
	dir := filepath.Join("/sys/fs/cgroup/cpu", cgroup)
	return numbers(t, filepath.Join(dir, "cpu.cfs_quota_us"))[0], numbers(t, filepath.Join(dir, "cpu.cfs_period_us"))[0]
}

// CPUShares are the cgroup's CPU shares, 1024 for each requested CPU. Cgroup v2 has a weight
// instead, which runtimes compute by different formulas.
func CPUShares(t testbed.T, cgroup string) (shares int, there bool) {
	t.Helper()
	file := filepath.Join("/sys/fs/cgroup/cpu", cgroup, "cpu.shares")
	if !exists(file) {
		return 0, false
	}
	return numbers(t, file)[0], true
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// numbers reads the numbers in the first of the files that exists.
func numbers(t testbed.T, paths ...string) []int {
	t.Helper()
	for _, path := range paths {
		if !exists(path) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v", err)
		}
		var values []int
		for _, field := range strings.Fields(string(text)) {
			value, err := strconv.Atoi(field)
			testbed.Mustf(t, err, "%s", path)
			values = append(values, value)
		}
		return values
	}
	t.Fatalf("none of %v exists", paths)
	return nil
}

// containerID is the CRI's id of a container.
func containerID(status corev1.ContainerStatus) string {
	_, id, _ := strings.Cut(status.ContainerID, "://")
	return id
}
