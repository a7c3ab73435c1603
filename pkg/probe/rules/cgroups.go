package rules

import (
	"fmt"

	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// cgroups: pods are in those of the version that the node limits them by.
func (b *builder) cgroups() {
	rt := b.Handler.Runtime
	b.cgroup(capability.CgroupV1, 1)
	b.cgroup(capability.CgroupV2, 2)
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

func (b *builder) cgroup(n capability.Name, version int) {
	rt := b.Handler.Runtime
	can := rt.Cgroup(version)
	// runsc declares neither version 2 nor systemd, and has both for its sandbox. Releases of
	// crun that do not tell know both versions.
	if rt.Name == probe.Runsc || rt.Name == probe.Crun && rt.Features == nil {
		can = capability.Yes
	}
	switch {
	case b.Node.Cgroup != version:
		note := fmt.Sprintf("this node has version %d", b.Node.Cgroup)
		if can == capability.Yes {
			note += fmt.Sprintf("; the runtime also supports %d", version)
		}
		b.no(n, capability.Probed, note)
	case can == capability.Yes:
		b.yes(n, capability.Declared, "")
	case can == capability.No:
		b.no(n, capability.Declared, "it was built without")
	default:
		b.unknown(n, "")
	}
}
