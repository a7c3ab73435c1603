package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/berth-cri/berth/pkg/config"
)

// kernel checks the kernel features that pods need.
func kernel(n Node) []Finding {
	var found []Finding
	release := n.value("/proc/sys/kernel/osrelease")
	if older(release, "5.10") {
		found = append(found, warn("Linux "+release+" is older than 5.10: any container can flush root file systems to disk, which is slow", "upgrade the kernel"))
	}
	if older(release, "5.19") {
		found = append(found, warn("Linux "+release+" cannot map the IDs of image layers: pods with hostUsers: false are refused", "upgrade the kernel to 5.19 or newer"))
	}
	if n.Config.Engine.Snapshotter == "overlayfs" && !slices.Contains(strings.Fields(n.value("/proc/filesystems")), "overlay") {
		found = append(found, fail("the kernel has no overlay file system", `modprobe overlay, or set engine.snapshotter = "native"`))
	}
	if !n.exists("/proc/sys/kernel/seccomp/actions_avail") {
		found = append(found, warn("the kernel has no seccomp: pods with a seccomp profile, including the default one, are refused", "use a kernel with CONFIG_SECCOMP_FILTER"))
	}
	found = append(found, controllers(n)...)
	return or(found, "kernel "+release+" has all features pods need")
}

// older reports whether a kernel release is known and below a version. Pure.
func older(release, than string) bool {
	v, err := version.ParseGeneric(release)
	return err == nil && v.LessThan(version.MustParseGeneric(than))
}

// controllers checks that the cgroup controllers for pods' limits are available.
func controllers(n Node) []Finding {
	var there []string
	if text := n.value("/sys/fs/cgroup/cgroup.controllers"); text != "" {
		there = strings.Fields(text)
	} else {
		for _, dir := range n.list("/sys/fs/cgroup") {
			there = append(there, strings.Split(dir, ",")...)
		}
	}
	if len(there) == 0 {
		return []Finding{fail("no cgroups are mounted at /sys/fs/cgroup", "mount -t cgroup2 cgroup2 /sys/fs/cgroup, or boot with systemd")}
	}
	missing := slices.DeleteFunc([]string{"cpu", "cpuset", "memory", "pids"}, func(c string) bool { return slices.Contains(there, c) })
	if len(missing) > 0 {
		return []Finding{fail("cgroup controllers are missing: "+strings.Join(missing, ", "),
			"remove cgroup_disable= from the kernel command line; for memory add cgroup_enable=memory")}
	}
	return nil
}

// cgroupDriver compares berth, its shims and the kubelet: all must use the same driver.
func cgroupDriver(n Node) []Finding {
	ours := n.Config.Engine.CgroupDriver
	from := "engine.cgroup_driver"
	if ours == config.CgroupDriverAuto {
		ours, from = config.CgroupDriverCgroupfs, "detected: process 1 is not systemd"
		if n.exists("/run/systemd/system") {
			ours, from = config.CgroupDriverSystemd, "detected: process 1 is systemd"
		}
	}
	var found []Finding
	if ours == config.CgroupDriverSystemd && !n.exists("/run/systemd/system") {
		found = append(found, fail("engine.cgroup_driver is systemd, but process 1 is not systemd", `set engine.cgroup_driver = "cgroupfs"`))
	}
	for _, d := range n.Config.Runtimes {
		if systemd, said := d.ShimOptions["SystemdCgroup"].(bool); said && systemd != (ours == config.CgroupDriverSystemd) {
			found = append(found, fail(fmt.Sprintf("handler %q has options.SystemdCgroup = %t, but berth's cgroup driver is %s (%s)", d.Name, systemd, ours, from),
				"remove options.SystemdCgroup at "+d.Origin))
		}
	}
	theirs, place := n.kubeletConf().Setting("cgroupDriver", "cgroup-driver")
	if theirs != "" && theirs != string(ours) {
		found = append(found, warn(fmt.Sprintf("the kubelet's cgroupDriver is %s (%s), but berth's is %s (%s); a kubelet before 1.34 uses its own",
			theirs, place, ours, from), fmt.Sprintf("set cgroupDriver: %s there", ours)))
	}
	return or(found, fmt.Sprintf("all use %s (%s)", ours, from))
}

// noexec checks that berth can write and execute its kept binaries in engine.root. engine.state may
// be noexec, as /run is: file systems that are mounted below it have their own options.
func noexec(n Node) []Finding {
	table := n.value("/proc/self/mountinfo")
	if table == "" {
		return []Finding{warn("cannot read the mount table", "check that /proc is mounted")}
	}
	root := n.Config.Engine.Root
	point, options := mountOf(table, root)
	if slices.Contains(options, "noexec") {
		return []Finding{fail(fmt.Sprintf("engine.root %s is on %s, which is mounted noexec: pods run on the installed binaries instead of kept ones, so an upgrade replaces binaries in use", root, point),
			"mount -o remount,exec "+point+", or choose another engine.root")}
	}
	if slices.Contains(options, "ro") {
		return []Finding{fail(fmt.Sprintf("engine.root %s is on %s, which is mounted read-only", root, point), "mount -o remount,rw "+point)}
	}
	return []Finding{fine(fmt.Sprintf("%s (on %s) allows executing binaries", root, point))}
}

func mountOf(table, path string) (point string, options []string) {
	// The error is ignored: a kernel writes only valid lines.
	mounts, _ := mountinfo.GetMountsFromReader(strings.NewReader(table), mountinfo.ParentsFilter(path))
	for _, m := range mounts {
		if len(m.Mountpoint) >= len(point) { // a later mount at the same place covers the earlier one
			point, options = m.Mountpoint, strings.Split(m.Options, ",")
		}
	}
	return point, options
}

// sysctls checks the kernel's settings for pods. berth does not change them: they belong to the
// node.
func sysctls(n Node) []Finding {
	var found []Finding
	if n.value("/proc/sys/net/ipv4/ip_forward") == "0" {
		found = append(found, fail("net.ipv4.ip_forward is 0: pods cannot reach other nodes", "sysctl -w net.ipv4.ip_forward=1, and persist it in /etc/sysctl.d"))
	}
	const bridge = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	switch {
	case n.value(bridge) == "0":
		found = append(found, warn("net.bridge.bridge-nf-call-iptables is 0: Services may not work between pods on one bridge", "sysctl -w net.bridge.bridge-nf-call-iptables=1, and persist it in /etc/sysctl.d"))
	case !n.exists(bridge) && n.usesBridge():
		found = append(found, warn("a CNI network uses a bridge, but the module br_netfilter is not loaded: Services may not work between pods on it", "modprobe br_netfilter, and persist it in /etc/modules-load.d"))
	}
	if n.value("/proc/sys/user/max_user_namespaces") == "0" {
		found = append(found, warn("user.max_user_namespaces is 0: pods with hostUsers: false cannot start", "sysctl -w user.max_user_namespaces=16384"))
	}
	return or(found, "forwarding and bridges are set up for pods")
}
