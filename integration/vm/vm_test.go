package vm

import (
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/machine"
)

// TestConformance is what the suite shows where systemd makes the cgroups, all of them
// v2: every kind of runtime, in the groups that ask for them.
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

// TestRecovery ends daemons and supervisors under pods, and takes a checkpoint: the
// criu of this node knows its kernel.
func TestRecovery(t *testing.T) {
	m := boot(t)
	bring(t, m, testbed.Runc, testbed.RuncShim)
	m.Put(t, compiled(t, "integration/faults", ""), place+"/faults.test")
	m.Test(t, machine.Tests{
		Binary: place + "/faults.test", Timeout: bound, Env: environment(),
		Run: "^(TestSupervisorKilled|TestSupervisorOfOnePod|TestBothKilled|TestDaemonKilled|TestCheckpoint)$",
	})
}

// TestCheckpoints has pods sleep and wake by the criu of this node, where cgroups are v2.
func TestCheckpoints(t *testing.T) {
	m := boot(t)
	bring(t, m, testbed.Runc, testbed.Runsc, testbed.RuncShim)
	m.Put(t, compiled(t, "integration/podcheckpoint", ""), place+"/podcheckpoint.test")
	m.Test(t, machine.Tests{
		Binary: place + "/podcheckpoint.test", Timeout: bound, Env: environment(),
		Run: "^(TestPodGoesOn|TestNamespacesOfARestoredPod|TestTerminalAndInput)$/^runc$",
	})
}

// TestPackage upgrades the package of the version before under pods, and reboots the node.
func TestPackage(t *testing.T) {
	m := boot(t)
	m.Put(t, deb(t, repository(t), "1.1.0"), place+"/newer.deb")
	packaged(t, m, before(t), "TestInstall", "TestUpgrade")
	m.Reboot(t)
	within(t, m, "TestAfterReboot")
}

// TestBeside has a containerd with a unit of its own on a packaged node.
func TestBeside(t *testing.T) {
	m := boot(t)
	for _, part := range []string{testbed.Containerd, testbed.RuncShim} {
		m.Put(t, testbed.Part(t, part), place+"/"+part)
	}
	packaged(t, m, repository(t), "TestInstall", "TestBesideContainerd")
}

// TestKubelet runs pods that a control plane asks for.
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

// TestARM64 is the package on another processor, with a pod of its crun.
func TestARM64(t *testing.T) {
	file := packageOf(t, repository(t), "deb-arm64", "VERSION=1.0.0")
	m := machine.Start(t, machine.Options{Kind: machine.ARM64})
	m.Put(t, file, place+"/berth.deb")
	within(t, m, "TestInstall")
}

// TestSELinux runs pods on a node with Debian's policy, which names a type for containers
// that it does not have, and looks at their labels when it has it. Nothing is enforced: what
// a policy without rules for a container runtime forbids says nothing of berth.
func TestSELinux(t *testing.T) {
	m := machine.Start(t, machine.Options{Kind: machine.SELinux, Kernel: "security=selinux selinux=1 enforcing=0"})
	m.Run(t, "test", "-e", "/sys/fs/selinux/enforce")
	t.Run("as Debian has it", func(t *testing.T) { conforms(t, m, systemd, groups("runc|crun", "Exit")) })
	t.Run("with a type for containers", func(t *testing.T) {
		m.Write(t, "/root/containers.cil", containerTypes)
		m.Run(t, "semodule", "-i", "/root/containers.cil")
		conforms(t, m, systemd, groups("runc|crun|shim", "Security"))
	})
}

// containerTypes are those that /etc/selinux/default/contexts/lxc_contexts names.
const containerTypes = `
(type container_t) (roletype system_r container_t) (typepermissive container_t)
(type container_file_t) (roletype object_r container_file_t)
(type container_ro_file_t) (roletype object_r container_ro_file_t)
`
