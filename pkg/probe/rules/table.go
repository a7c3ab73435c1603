package rules

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Of returns the capability table that follows from facts. It is empty for a runtime that was not
// probed. Pure.
func Of(f Facts) capability.Table {
	f.Handler.Unversioned = true
	b := &builder{Facts: f}
	if f.Handler.Runtime == nil {
		return b.table
	}
	b.kernel = f.Handler.Runtime.KernelTable(f.Krun)
	if f.Handler.Runtime.Wasm {
		b.kernel.Capabilities = modules
	}
	b.table.Isolation, b.table.IsolationSource = b.kernel.Isolation, b.kernel.IsolationSource
	b.table.SeccompActions = b.seccompActions()
	if f.Proof != nil { // a self-check pod that breaks a promise has no Proof
		b.table.Conforms = f.Conforms
	}
	b.preflighted()
	b.followsFromKernel()
	b.security()
	b.hugePages()
	b.cgroups()
	b.netDevices()
	b.proven()
	return b.table
}

type builder struct {
	Facts
	kernel capability.Table // what follows from the kernel alone
	table  capability.Table
}

func (b *builder) yes(n capability.Name, s capability.Source, note string) {
	b.table.Set(n, capability.Yes, s, note)
}

func (b *builder) no(n capability.Name, s capability.Source, note string) {
	b.table.Set(n, capability.No, s, note)
}

func (b *builder) unknown(n capability.Name, note string) {
	b.table.Set(n, capability.Unknown, "", note)
}

// refused sets "no" if preflight refuses the capability, and reports whether it did. If preflight
// would refuse it on every node, the source is Declared, otherwise Probed.
func (b *builder) refused(n capability.Name) bool {
	ask := asks[n]
	if ask == nil {
		return false
	}
	lack := ask(b.Handler)
	if lack == nil {
		return false
	}
	able := b.Handler
	able.Node.MountSetattr, able.UserNamespaces, able.Checkpoints = true, nil, nil
	if own := ask(able); own != nil {
		b.no(n, capability.Declared, own.Why)
		return true
	}
	b.no(n, capability.Probed, lack.Why)
	return true
}

// preflighted sets the capabilities that preflight decides alone: the runtime reports those that
// preflight does not refuse.
func (b *builder) preflighted() {
	for _, n := range []capability.Name{
		capability.RecursiveReadOnlyMounts, capability.IDMappedMounts, capability.Checkpoint, capability.PodCheckpoint, capability.UserNamespaces,
	} {
		if n == capability.UserNamespaces && b.Unsure {
			able := b.Handler
			if able.UserNamespaces = nil; preflight.UserNamespaces(able) == nil {
				b.unknown(n, "not yet known whether this node maps the IDs of images")
				continue
			}
		}
		if !b.refused(n) {
			b.yes(n, capability.Declared, "")
		}
	}
}

// followsFromKernel sets the capabilities of byKernel that preflight does not refuse.
func (b *builder) followsFromKernel() {
	for _, name := range byKernel {
		if b.refused(name) {
			continue
		}
		if k := b.kernel.Of(name); k.Answer == capability.Unknown {
			b.unknown(name, k.Note)
		} else {
			b.table.Set(name, k.Answer, b.kernel.IsolationSource, k.Note)
		}
	}
	if b.kernel.Isolation == capability.UserSpaceKernel && b.Handler.HostNetwork {
		if b.HostNetwork {
			b.yes(capability.HostNetwork, capability.Declared, "it is configured to use the host's network")
		} else {
			b.unknown(capability.HostNetwork, "its own configuration file may give it the host's network")
		}
	}
}

// seccompActions returns the actions that the runtime reports, or those of its kernel.
func (b *builder) seccompActions() []string {
	if rt := b.Handler.Runtime; rt.Features != nil && rt.Features.Linux != nil && rt.Features.Linux.Seccomp != nil {
		return slices.Sorted(slices.Values(rt.Features.Linux.Seccomp.Actions))
	}
	return b.kernel.SeccompActions
}

const doesNotApply = "does not apply to containers on a kernel of their own"

// security sets what the host's kernel enforces on containers that are its processes.
func (b *builder) security() {
	rt := b.Handler.Runtime
	b.enforced(capability.Seccomp, b.Node.Seccomp, "this node's kernel has no seccomp", rt.Seccomp())
	b.enforced(capability.AppArmor, b.Handler.Node.AppArmor, "this node does not have AppArmor", rt.AppArmor())
	b.enforced(capability.SELinux, b.Handler.Node.SELinux, "this node does not have SELinux", rt.SELinux())
}

// enforced sets "no" if the node lacks the capability. On a kernel of their own, containers may
// request it, but the request has no effect.
func (b *builder) enforced(n capability.Name, node bool, without string, reported capability.Answer) {
	switch {
	case !node:
		b.no(n, capability.Probed, without)
	case b.refused(n):
	case b.kernel.Isolation.OwnKernel():
		b.yes(n, b.kernel.IsolationSource, cmp.Or(b.kernel.Of(n).Note, doesNotApply))
	case reported == capability.Yes && b.Handler.Runtime.Kernel().HostProcesses:
		b.yes(n, capability.Declared, "")
	default:
		b.unknown(n, "")
	}
}

// hugePages sets HugePages. If containers share the node's kernel, it must have huge page sizes.
func (b *builder) hugePages() {
	switch {
	case b.kernel.Of(capability.HugePages).Answer != capability.Yes:
		b.unknown(capability.HugePages, "")
	case len(b.Node.HugePages) == 0:
		b.no(capability.HugePages, capability.Probed, "this node's kernel has no huge pages")
	default:
		b.yes(capability.HugePages, capability.Probed, "")
	}
}

// netDevices sets NetDevices: berth refuses network devices unless the runtime reports support.
func (b *builder) netDevices() {
	if b.Handler.Runtime.SupportsNetDevices() {
		b.yes(capability.NetDevices, capability.Declared, "")
		return
	}
	b.no(capability.NetDevices, capability.Declared, "it does not report support for network devices")
}

// proven sets the results of self-check pods. A failure does not make preflight refuse pods, so it
// sets "unknown" for capabilities that preflight decides, and "no" for others.
func (b *builder) proven() {
	for n, why := range b.Proof {
		switch {
		case why == "":
			b.yes(n, capability.Ran, b.table.Of(n).Note)
		case asks[n] != nil:
			if b.table.Of(n).Answer != capability.No {
				b.unknown(n, "the self-check pod failed with it: "+why)
			}
		default:
			b.no(n, capability.Ran, "the self-check pod failed with it: "+why)
		}
	}
}

// cgroups sets the cgroup capabilities: pods are in cgroups of the node's version.
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
		b.no(capability.SystemdCgroup, capability.Declared, "it was built without support")
	default:
		b.unknown(capability.SystemdCgroup, "")
	}
}

func (b *builder) cgroup(n capability.Name, version int) {
	rt := b.Handler.Runtime
	can := rt.Cgroup(version)
	// runsc reports neither version 2 nor systemd, but supports both for its sandbox. Releases of
	// crun that do not report versions support both.
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
		b.no(n, capability.Declared, "it was built without support")
	default:
		b.unknown(n, "")
	}
}
