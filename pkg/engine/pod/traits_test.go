package pod

import (
	"testing"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

func TestTraits(t *testing.T) {
	supervised := Traits{JournalsStarts: true, ClosesStdin: true, KillsTree: true}
	foreign := Traits{OwnShim: true, MountsRootfs: true, CreatesEarly: true}
	with := func(t Traits, change func(*Traits)) Traits { change(&t); return t }
	for name, c := range map[string]struct {
		kind handler.Type
		plan Plan
		want Traits
	}{
		"runc":                     {handler.OCI, Plan{Net: true, Runtime: probe.Runc}, with(supervised, func(t *Traits) { t.HostProcesses = true })},
		"gVisor":                   {handler.OCI, Plan{Net: true, OwnKernel: true, Runtime: probe.Runsc}, with(supervised, func(t *Traits) { t.DialsInside, t.MemoryLimit = true, true })},
		"gVisor, the host network": {handler.OCI, Plan{OwnKernel: true, Runtime: probe.Runsc}, with(supervised, func(t *Traits) { t.MemoryLimit = true })},
		"runc by a shim":           {handler.Shim, Plan{Net: true}, with(foreign, func(t *Traits) { t.HostProcesses = true })},
		"gVisor by a shim":         {handler.Shim, Plan{Net: true, OwnKernel: true, Runtime: probe.Runsc}, with(foreign, func(t *Traits) { t.Machine = true })},
		"a machine":                {handler.Shim, Plan{Net: true, OwnKernel: true}, with(foreign, func(t *Traits) { t.Machine = true })},
	} {
		if got := TraitsOf(&handler.Definition{Type: c.kind}, c.plan); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
