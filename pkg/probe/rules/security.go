package rules

import (
	"github.com/berth-cri/berth/pkg/probe/capability"
)

const meansNothing = "does not apply to containers on a kernel of their own"

// security is what the host's kernel enforces, if containers are its processes.
func (b *builder) security() {
	rt := b.Handler.Runtime
	b.enforced(capability.Seccomp, asksSeccomp, b.Node.Seccomp, "this node's kernel has no seccomp", rt.SupportsSeccomp())
	b.enforced(capability.AppArmor, asksAppArmor, b.Handler.Node.AppArmor, "this node does not have AppArmor", rt.SupportsAppArmor())
	b.enforced(capability.SELinux, asksSELinux, b.Handler.Node.SELinux, "this node does not have SELinux", rt.SupportsSELinux())
	if b.kind == gVisor && b.table.Of(capability.Seccomp).Answer == capability.Yes {
		b.yes(capability.Seccomp, b.source, "Localhost profiles; others only with --oci-seccomp")
	}
}

// enforced: what a node lacks no handler has. Where a kernel of its own stands between,
// what is asked for means nothing.
func (b *builder) enforced(n capability.Name, ask request, node bool, without string, says bool) {
	switch own := b.Handler.Runtime.OwnKernel || b.kind == krun; {
	case !node:
		b.no(n, capability.Probed, without)
	case b.refused(n, ask):
	case own && b.kind != unknownKind:
		b.yes(n, b.source, meansNothing)
	case !own && says:
		b.yes(n, capability.Declared, "")
	default:
		b.unknown(n, "")
	}
}
