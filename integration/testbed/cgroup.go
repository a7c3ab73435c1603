package testbed

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	cgroupfsDriver = "cgroupfs"
	systemdDriver  = "systemd"
)

// cgroupDriver is BERTH_TEST_CGROUP_DRIVER. The default works on every host. With systemd, the pods
// are in a slice of systemd, and leaks there are not found.
func cgroupDriver() string {
	return cmp.Or(os.Getenv("BERTH_TEST_CGROUP_DRIVER"), cgroupfsDriver)
}

// SystemdCgroups reports whether systemd creates the cgroups of pods.
func SystemdCgroups() bool { return cgroupDriver() == systemdDriver }

// LimitMemory creates a pod's cgroup with a limit, as a kubelet does before it runs the pod.
func LimitMemory(t T, parent string, bytes int64) {
	t.Helper()
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(root); err != nil {
		root, file = "/sys/fs/cgroup", "memory.max"
	}
	dir := root
	for _, part := range strings.Split(strings.Trim(parent, "/"), "/") {
		if file == "memory.max" {
			Mustf(t, os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+memory"), 0), "limit the memory of %s", parent)
		}
		dir = filepath.Join(dir, part)
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			t.Fatalf("limit the memory of %s: %v", parent, err)
		}
	}
	Mustf(t, os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(bytes, 10)), 0), "limit the memory of %s", parent)
}

// PowerCut leaves only the daemon's files on disk, as a power cut of its host does. It removes
// processes, mounts, namespaces, cgroups, links, firewall rules and the state directory. Start
// starts the daemon again.
func (d *Daemon) PowerCut(t T) {
	t.Helper()
	d.Kill9(t)
	err := errors.Join(d.killProcesses(), d.unmount(), d.removeCgroups(), os.RemoveAll(d.State))
	if d.cni != nil {
		err = errors.Join(err, d.cni.removeRules(), d.cni.removeBridge())
	}
	Mustf(t, err, "cut the power")
}
