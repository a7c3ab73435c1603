package vm

import (
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/machine"
)

// TestHeart has the tests in a whole node that every change must pass: the packaged unit with pods,
// a power cut while berth writes, and a kubelet.
func TestHeart(t *testing.T) {
	m := boot(t)
	t.Run("unit", func(t *testing.T) {
		program(t, m)
		packaged(t, m, repository(t), "TestInstall", "TestUnit", "TestCgroupPrefix", "TestUnitTakesNothing", "TestUnitEnds")
	})
	t.Run("power cut", func(t *testing.T) { powerCut(t, m) })
	t.Run("kubelet", func(t *testing.T) {
		m.Put(t, testbed.Part(t, testbed.Kubelet), place+"/kubelet")
		within(t, m, "TestKubeletPod")
	})
}

// TestHeartConformance runs the groups of the suite that depend most on cgroups.
func TestHeartConformance(t *testing.T) {
	conforms(t, boot(t), systemd, groups("runc", "Exit", "Metrics", "Resources", "UserNamespaces"))
}

// TestHeartVLAN compares networks with VLANs in process with those of plugins. The kernel of a host may
// have no VLAN filtering.
func TestHeartVLAN(t *testing.T) {
	m := boot(t)
	m.Run(t, "ip", "link", "add", "filter", "type", "bridge", "vlan_filtering", "1")
	for _, plugin := range []string{"bridge", "host-local", "portmap", "flannel"} {
		m.Put(t, filepath.Join(repository(t), "bin", "cni", plugin), place+"/cni/"+plugin)
	}
	m.Put(t, compiled(t, "pkg/engine/network", ""), place+"/network.test")
	m.Test(t, machine.Tests{
		Binary: place + "/network.test", Timeout: bound, Env: environment("BERTH_TEST_CNI=" + place + "/cni"),
		Run: "^(TestInProcessIsLikePlugins|TestVLANOfSeveralPods)$/^VLAN",
	})
}

// packaged runs tests with the package in a machine that does not have it installed. Afterwards the
// machine has the package, and the pods that the tests leave.
func packaged(t *testing.T, m *machine.Machine, source string, tests ...string) {
	m.Put(t, deb(t, source, "1.0.0"), place+"/berth.deb")
	m.Put(t, testbed.Part(t, testbed.Runc), place+"/runc")
	within(t, m, tests...)
}

// program copies a 32-bit program for pods to a machine.
func program(t *testing.T, m *machine.Machine) {
	t.Helper()
	path, err := machine.Built("program", "./integration/vm/program", "386")
	testbed.Must(t, err)
	m.Put(t, path, place+"/program")
}

// powerCut cuts the power while berth is in the middle of its writes, boots, and checks the node.
func powerCut(t *testing.T, m *machine.Machine) {
	m.Put(t, filepath.Join(testbed.Built(t, "berth_failpoints"), "berth"), place+"/failpoints/berth")
	cut(t, m, "TestHold")
	m.Boot(t)
	within(t, m, "TestAfterPowerCut")
}
