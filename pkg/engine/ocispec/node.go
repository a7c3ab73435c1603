package ocispec

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/pkg/apparmor"
	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/containerd/v2/pkg/seccomp"
	"github.com/moby/sys/capability"
	"github.com/moby/sys/mountinfo"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// defaultAppArmorProfile is the name under which berth loads its default profile.
const defaultAppArmorProfile = "berth-default"

// DetectNode reads the facts of the machine and of this process. Call it once at start: the facts
// do not change while the daemon runs. On a node with AppArmor it also loads the default profile,
// and returns an error if this fails, because pods would run without a profile.
func DetectNode() (Node, error) {
	n := Node{
		CgroupUnified:     cgroups.Mode() == cgroups.Unified,
		Seccomp:           seccomp.IsEnabled(),
		AppArmor:          apparmor.HostSupports(),
		SELinux:           selinuxUsable(),
		HugetlbController: cgroup.Controllers().HasHugetlb(),
		SwapController:    cgroup.Controllers().HasSwap(),
		HostDevices:       oci.HostDevices,
		Devices:           devicesAt,
		ResolvePath:       filepath.EvalSymlinks,
		ReadFile:          readProfile,
		AppArmorLoaded:    profileLoaded,
	}
	var err error
	if n.Hostname, err = os.Hostname(); err != nil {
		return Node{}, fmt.Errorf("find the node's name: %w", err)
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return Node{}, fmt.Errorf("find the kernel's version: %w", err)
	}
	n.Kernel = unix.ByteSliceToString(kernel.Release[:])
	if n.Capabilities, n.MinOOMScoreAdj, err = privileges(); err != nil {
		return Node{}, err
	}
	if n.KernelRRO, err = kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 5, Major: 12}); err != nil {
		return Node{}, fmt.Errorf("find the kernel's version: %w", err)
	}
	if n.CgroupUnified {
		if n.CgroupMountOptions, err = cgroupMountOptions(); err != nil {
			return Node{}, err
		}
	}
	if n.AppArmor {
		if err := loadDefaultProfile(); err != nil {
			return Node{}, fmt.Errorf("load AppArmor profile %s: %w", defaultAppArmorProfile, err)
		}
	}
	return n, nil
}

// privileges returns the capabilities of this process, and the lowest oom_score_adj that it may
// set.
func privileges() (caps []string, minOOM int, err error) {
	c, err := capability.NewPid2(0)
	if err == nil {
		err = c.Load()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the daemon's capabilities: %w", err)
	}
	caps = []string{}
	for _, k := range capability.ListKnown() {
		if c.Get(capability.PERMITTED, k) && c.Get(capability.BOUNDING, k) {
			caps = append(caps, "CAP_"+strings.ToUpper(k.String()))
		}
	}
	if c.Get(capability.EFFECTIVE, capability.CAP_SYS_RESOURCE) {
		return caps, -1000, nil
	}
	if minOOM, err = procfs.OOMScore(); err != nil {
		return nil, 0, err
	}
	return caps, minOOM, nil
}

const cgroupRoot = "/sys/fs/cgroup"

// cgroupMountOptions returns the options of the node's cgroup2 superblock that any new mount of
// this file system would reset.
func cgroupMountOptions() ([]string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(cgroupRoot))
	if err != nil {
		return nil, fmt.Errorf("find the mount of %s: %w", cgroupRoot, err)
	}
	var out []string
	for _, m := range mounts {
		for o := range strings.SplitSeq(m.VFSOptions, ",") {
			if o == "nsdelegate" || o == "memory_recursiveprot" {
				out = append(out, o)
			}
		}
	}
	return out, nil
}

// devicesAt lists the device at hostPath, or all devices in that directory.
func devicesAt(hostPath, containerPath string) ([]specs.LinuxDevice, error) {
	s := &specs.Spec{Linux: &specs.Linux{Resources: &specs.LinuxResources{}}} // WithDevices requires both
	if err := oci.WithDevices(hostPath, containerPath, allAccess)(context.Background(), nil, nil, s); err != nil {
		return nil, err
	}
	return s.Linux.Devices, nil
}

func profileLoaded(name string) (bool, error) {
	f, err := os.Open("/sys/kernel/security/apparmor/profiles")
	if err != nil {
		return false, err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if strings.HasPrefix(sc.Text(), name+" (") {
			return true, nil
		}
	}
	return false, sc.Err()
}
