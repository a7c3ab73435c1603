package vm

import (
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/machine"
)

// bound is what any of the tests here may take together on a host.
const bound = 5 * time.Minute

// TestHeart is what every change has to show of a whole node: the packaged unit under
// pods.
func TestHeart(t *testing.T) {
	m := boot(t)
	t.Run("unit", func(t *testing.T) { packaged(t, m) })
}

// TestConformance is what the suite shows where systemd makes the cgroups, all of them
// v2: the groups that ask for them.
func TestConformance(t *testing.T) {
	conforms(t, boot(t), "systemd", groups("runc|crun", "Exit", "Resources", "Stats", "Metrics", "UserNamespaces"))
}

// packaged is the package in a machine that has never had it: the unit, and every end
// of the daemon under pods. The machine has the package and two pods then.
func packaged(t *testing.T, m *machine.Machine) {
	m.Put(t, deb(t, "1.0.0"), place+"/berth.deb")
	m.Put(t, testbed.Part(t, testbed.Runc), place+"/runc")
	inside(t, m, "(TestInstall|TestUnit|TestUnitEnds)")
}

// inside runs tests of integration/vm/inside.
func inside(t *testing.T, m *machine.Machine, name string) {
	t.Helper()
	m.Put(t, compiled(t, "integration/vm/inside", "berth_vm"), place+"/inside.test")
	m.Test(t, machine.Tests{Binary: place + "/inside.test", Run: "^" + name + "$", Timeout: bound, Env: environment()})
}

// conforms runs checks of the conformance suite.
func conforms(t *testing.T, m *machine.Machine, driver, checks string) {
	t.Helper()
	bring(t, m, testbed.Runc, testbed.Runsc, testbed.RuncShim)
	m.Put(t, compiled(t, "integration/conformance", ""), place+"/conformance.test")
	m.Test(t, machine.Tests{
		Binary: place + "/conformance.test", Run: checks, Timeout: bound, Env: environment("BERTH_TEST_CGROUP_DRIVER=" + driver),
	})
}
