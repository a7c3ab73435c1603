package vm

import (
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/machine"
)

// TestHeart is what every change has to show of a whole node: the packaged unit under
// pods, those of a kubelet among them, and a power cut in the middle of everything.
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

// TestHeartConformance is the part of the suite that cgroups matter to most.
func TestHeartConformance(t *testing.T) {
	conforms(t, boot(t), systemd, groups("runc", "Exit", "Metrics", "Resources", "UserNamespaces"))
}

// packaged is the package in a machine that has never had it. The machine has it, and
// what pods the tests leave, then.
func packaged(t *testing.T, m *machine.Machine, source string, tests ...string) {
	m.Put(t, deb(t, source, "1.0.0"), place+"/berth.deb")
	m.Put(t, testbed.Part(t, testbed.Runc), place+"/runc")
	within(t, m, tests...)
}

// program brings a 32-bit program for pods.
func program(t *testing.T, m *machine.Machine) {
	t.Helper()
	path, err := machine.Built("program", "./integration/vm/program", "386")
	testbed.Must(t, err)
	m.Put(t, path, place+"/program")
}

// powerCut takes the power away in the middle of everything that berth writes down.
func powerCut(t *testing.T, m *machine.Machine) {
	m.Put(t, filepath.Join(testbed.Built(t, "berth_failpoints"), "berth"), place+"/failpoints/berth")
	cut(t, m, "TestHold")
	m.Boot(t)
	within(t, m, "TestAfterPowerCut")
}
