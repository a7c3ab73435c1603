package vm

import (
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/machine"
)

// TestConformance runs the groups of the suite that depend on cgroups, on a node with cgroup v2 and
// systemd: under every kind of runtime with the driver systemd, and under some with cgroupfs.
func TestConformance(t *testing.T) {
	m := boot(t)
	t.Run("systemd", func(t *testing.T) {
		conforms(t, m, systemd, groups("crun|runsc|shim", "Exit", "Metrics", "Resources", "UserNamespaces"))
		conforms(t, m, systemd, groups("runc|crun|runsc|shim", "Stats", "PodStats", "Security"))
	})
	t.Run("cgroupfs", func(t *testing.T) {
		conforms(t, m, cgroupfs, groups("runc|crun", "Exit", "Metrics", "Resources", "Stats", "PodStats"))
	})
}

// TestRecovery kills daemons and supervisors while pods run, and takes a checkpoint, for which this
// node has a criu that supports its kernel.
func TestRecovery(t *testing.T) {
	m := boot(t)
	bring(t, m, testbed.Runc, testbed.RuncShim)
	m.Put(t, compiled(t, "integration/faults", ""), place+"/faults.test")
	m.Test(t, machine.Tests{
		Binary: place + "/faults.test", Timeout: bound, Env: environment(),
		Run: "^(TestSupervisorKilled|TestSupervisorOfOnePod|TestBothKilled|TestDaemonKilled|TestCheckpoint)$",
	})
}

// TestCheckpoints checkpoints and restores containers by the criu of this node, with cgroup v2.
func TestCheckpoints(t *testing.T) {
	m := boot(t)
	bring(t, m, testbed.Runc, testbed.RuncShim)
	m.Put(t, compiled(t, "integration/faults", ""), place+"/faults.test")
	m.Test(t, machine.Tests{
		Binary: place + "/faults.test", Timeout: bound, Env: environment(),
		Run: "^(TestRestore|TestRestoredInput)$/^plain$",
	})
}

// TestPackage upgrades the package of the previous version while pods run, and reboots the node.
func TestPackage(t *testing.T) {
	m := boot(t)
	m.Put(t, deb(t, repository(t), "1.1.0"), place+"/newer.deb")
	packaged(t, m, before(t), "TestInstall", "TestUpgrade")
	m.Reboot(t)
	within(t, m, "TestAfterReboot")
}

// TestBeside runs a containerd, with its own unit, on a node with the packaged berth.
func TestBeside(t *testing.T) {
	m := boot(t)
	for _, part := range []string{testbed.Containerd, testbed.RuncShim} {
		m.Put(t, testbed.Part(t, part), place+"/"+part)
	}
	packaged(t, m, repository(t), "TestInstall", "TestBesideContainerd")
}

// TestKubelet runs pods of a control plane on the node.
func TestKubelet(t *testing.T) {
	m := machine.Start(t, machine.Options{Memory: 6144})
	bring(t, m, testbed.Runc, testbed.Runsc, testbed.Stargz)
	for _, part := range []string{
		testbed.Etcd, testbed.KubeAPIServer, testbed.KubeControllerManager, testbed.KubeScheduler, testbed.Kubectl, testbed.Kubelet,
	} {
		m.Put(t, testbed.Part(t, part), place+"/"+part)
	}
	m.Put(t, compiled(t, "integration/kubelet", "berth_vm"), place+"/kubelet.test")
	m.Test(t, machine.Tests{
		Binary: place + "/kubelet.test", Run: "^TestWholeNode$", Timeout: bound,
		Env: environment("BERTH_TEST_CGROUP_DRIVER="+systemd, "BERTH_TEST_KUBERNETES="+place, "BERTH_TEST_STARGZ="+filepath.Join(place, testbed.Stargz)),
	})
}

// TestARM64 installs the package on an arm64 node, and runs a pod by Debian's crun.
func TestARM64(t *testing.T) {
	file := packageOf(t, repository(t), "deb-arm64", "VERSION=1.0.0")
	m := machine.Start(t, machine.Options{Kind: machine.ARM64})
	m.Put(t, file, place+"/berth.deb")
	within(t, m, "TestInstall")
}

// TestSELinux runs pods on a node with Debian's policy, which names a type for containers but does
// not define it. With the type defined, it checks the labels of pods. SELinux is permissive, because
// the policy has no rules for a container runtime.
func TestSELinux(t *testing.T) {
	m := machine.Start(t, machine.Options{Kind: machine.SELinux, Kernel: "security=selinux selinux=1 enforcing=0"})
	m.Run(t, "test", "-e", "/sys/fs/selinux/enforce")
	t.Run("with Debian's policy", func(t *testing.T) { conforms(t, m, systemd, groups("runc|crun", "Exit")) })
	t.Run("with a type for containers", func(t *testing.T) {
		m.Write(t, "/root/containers.cil", containerTypes)
		m.Run(t, "semodule", "-i", "/root/containers.cil")
		conforms(t, m, systemd, groups("runc|crun|shim", "Security"))
	})
}

// containerTypes are the types that /etc/selinux/default/contexts/lxc_contexts names.
const containerTypes = `
(type container_t) (roletype system_r container_t) (typepermissive container_t)
(type container_file_t) (roletype object_r container_file_t)
(type container_ro_file_t) (roletype object_r container_ro_file_t)
`
