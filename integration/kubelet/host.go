package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/testbed"
)

// sysctls are the sysctls that a kubelet sets.
var sysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// keepSysctls restores the present values of the sysctls in a cleanup.
func keepSysctls(t testbed.T) {
	t.Helper()
	for _, name := range sysctls {
		path := filepath.Join("/proc/sys", name)
		before, err := os.ReadFile(path)
		testbed.Mustf(t, err, "read a sysctl that the kubelet will change")
		t.Cleanup(func() {
			// An unchanged value is not written, because a host may refuse the write.
			if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, before) {
				return
			}
			testbed.Checkf(t, os.WriteFile(path, before, 0), "put back a sysctl")
		})
	}
}

// makeCgroup creates a cgroup in every hierarchy. The kubelet requires this of cgroupRoot. The
// testbed removes the cgroup.
func makeCgroup(t testbed.T, name string) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	testbed.Mustf(t, err, "look for cgroups")
	for _, mount := range mounts {
		if !strings.HasPrefix(mount.Mountpoint, "/sys/fs/cgroup") {
			continue
		}
		if err := os.Mkdir(filepath.Join(mount.Mountpoint, name), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatalf("make the kubelet's cgroup: %v", err)
		}
	}
}

// legacyLogs is where a kubelet creates links to the logs of containers, whatever podLogsDir is.
const legacyLogs = "/var/log/containers"

// devicePlugins is where a kubelet creates a socket, whatever its root directory is.
const devicePlugins = "/var/lib/kubelet/device-plugins"

// keepDevicePlugins removes devicePlugins in a cleanup, unless it exists now.
func keepDevicePlugins(t testbed.T) {
	t.Helper()
	if _, err := os.Lstat(devicePlugins); err == nil {
		return
	}
	t.Cleanup(func() {
		testbed.Checkf(t, os.RemoveAll(devicePlugins), "clean up after the kubelet")
		// It stays if it has other files.
		_ = os.Remove(filepath.Dir(devicePlugins))
	})
}

// sweepNode removes the mounts and log links that a kubelet leaves.
func (c *Cluster) sweepNode(t testbed.T) {
	t.Helper()
	testbed.Checkf(t, errors.Join(unmountBelow(c.node.root), removeLegacyLogs(c.Logs)), "clean up after the kubelet")
}

func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	var failures []error
	for _, mount := range slices.Backward(mounts) {
		if err := unix.Unmount(mount.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			failures = append(failures, fmt.Errorf("unmount %s: %w", mount.Mountpoint, err))
		}
	}
	return errors.Join(failures...)
}

// removeLegacyLogs removes the links to a cluster's logs, and their directory if it is then empty.
func removeLegacyLogs(logs string) error {
	entries, err := os.ReadDir(legacyLogs)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		link := filepath.Join(legacyLogs, entry.Name())
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, logs+"/") {
			if err := os.Remove(link); err != nil {
				return err
			}
		}
	}
	// It stays if it has other links.
	if err := os.Remove(legacyLogs); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}
