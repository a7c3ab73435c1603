package rules

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go/features"

	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// cgroups: pods are in those of the version that the node limits them by.
func (b *builder) cgroups() {
	rt := b.Handler.Runtime
	said := &features.Cgroup{}
	if rt.Name != probe.Runsc && rt.Features != nil && rt.Features.Linux != nil && rt.Features.Linux.Cgroup != nil {
		said = rt.Features.Linux.Cgroup
	}
	b.cgroup(capability.CgroupV1, 1, said.V1)
	b.cgroup(capability.CgroupV2, 2, said.V2)
	switch {
	case !b.Node.Systemd:
		b.no(capability.SystemdCgroup, capability.Probed, "systemd does not run this node")
	case rt.SystemdCgroup() == capability.Yes:
		b.yes(capability.SystemdCgroup, capability.Declared, "")
	case rt.Name != probe.Runsc && rt.SystemdCgroup() == capability.No:
		b.no(capability.SystemdCgroup, capability.Declared, "it was built without")
	default:
		b.unknown(capability.SystemdCgroup, "")
	}
}

// knowsBoth are runtimes that do not tell, and whose releases know both versions. runsc
// declares neither version 2 nor systemd, and has both for its sandbox.
func (b *builder) knowsBoth() bool {
	rt := b.Handler.Runtime
	return rt.Name == probe.Runsc || rt.Features == nil && rt.Name == probe.Crun
}

func (b *builder) cgroup(n capability.Name, version int, said *bool) {
	can, tells := b.knowsBoth(), b.knowsBoth()
	if said != nil {
		can, tells = *said, true
	}
	switch {
	case b.Node.Cgroup != version:
		note := fmt.Sprintf("this node has version %d", b.Node.Cgroup)
		if can {
			note += fmt.Sprintf("; the runtime also supports %d", version)
		}
		b.no(n, capability.Probed, note)
	case can:
		b.yes(n, capability.Declared, "")
	case tells:
		b.no(n, capability.Declared, "it was built without")
	default:
		b.unknown(n, "")
	}
}
