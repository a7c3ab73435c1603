package rules

import (
	"strings"

	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Shims without an OCI runtime, by their reported names, or else by the prefixes of their file
// names.
const (
	kataID, kataFile   = "io.containerd.kata", "containerd-shim-kata"
	runscID, runscFile = "io.containerd.runsc", "containerd-shim-runsc"
)

// krunName is the name of crun as a runtime of virtual machines.
const krunName = "krun"

func (f Facts) known() (kind, capability.Source) {
	rt := f.Handler.Runtime
	if rt == nil {
		return unknownKind, ""
	}
	switch rt.Name {
	case probe.Runsc:
		return gVisor, capability.Declared
	case probe.Crun:
		switch {
		case f.Krun:
			return krun, capability.Declared
		case f.runs() == krunName:
			return krun, capability.Probed
		}
		return sharing, capability.Declared
	case probe.Runc, probe.Youki:
		return sharing, capability.Declared
	}
	switch {
	case rt.Wasm && rt.WasmDeclared:
		return wasm, capability.Declared
	case rt.Wasm:
		return wasm, capability.Probed
	case strings.HasPrefix(rt.ShimName, kataID):
		return kata, capability.Declared
	case strings.HasPrefix(rt.ShimName, runscID):
		return gVisor, capability.Declared
	case rt.ShimName != "" || !rt.ShimAlone:
	case strings.HasPrefix(f.Handler.Binary, kataFile):
		return kata, capability.Probed
	case strings.HasPrefix(f.Handler.Binary, runscFile):
		return gVisor, capability.Probed
	}
	return unknownKind, ""
}

func (k kind) isolation() capability.Isolation {
	switch k {
	case sharing, wasm:
		return capability.SharedKernel
	case gVisor:
		return capability.UserSpaceKernel
	case kata, krun:
		return capability.VM
	case unknownKind:
	}
	return ""
}

const doesNotApply = "does not apply to containers on a kernel of their own"

// security sets what the host's kernel enforces on containers that are its processes.
func (b *builder) security() {
	rt := b.Handler.Runtime
	b.enforced(capability.Seccomp, b.Node.Seccomp, "this node's kernel has no seccomp", rt.Seccomp())
	b.enforced(capability.AppArmor, b.Handler.Node.AppArmor, "this node does not have AppArmor", rt.AppArmor())
	b.enforced(capability.SELinux, b.Handler.Node.SELinux, "this node does not have SELinux", rt.SELinux())
	if b.kind == gVisor && b.table.Of(capability.Seccomp).Answer == capability.Yes {
		b.yes(capability.Seccomp, b.source, "Localhost profiles; others only with --oci-seccomp")
	}
}

// enforced sets "no" if the node lacks the capability. On a kernel of their own, containers accept
// the request, but it has no effect.
func (b *builder) enforced(n capability.Name, node bool, without string, reported capability.Answer) {
	switch own := !b.Handler.Runtime.Kernel().HostProcesses || b.kind == krun; {
	case !node:
		b.no(n, capability.Probed, without)
	case b.refused(n):
	case own && b.kind != unknownKind:
		b.yes(n, b.source, doesNotApply)
	case !own && reported == capability.Yes:
		b.yes(n, capability.Declared, "")
	default:
		b.unknown(n, "")
	}
}
