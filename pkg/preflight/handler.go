package preflight

import (
	"cmp"

	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe"
)

// Handler is what is known of a handler.
type Handler struct {
	Name string
	// Binary is the file name of what the handler runs.
	Binary string
	// Runtime is what the runtime said about itself; nil is not known.
	Runtime *probe.Runtime
	// Unversioned leaves the runtime's version out of texts that are for all nodes.
	Unversioned bool
	// HostNetwork says that a runtime with a kernel of its own was told to use
	// the host's network, or may have been.
	HostNetwork bool
	Node        Node
	// UserNamespaces and Checkpoints say what else keeps the handler from them:
	// its snapshotter, its shim, this node. They are asked only when the runtime
	// can. Nil is nothing.
	UserNamespaces, Checkpoints func() error
}

// Node is what the kernel has.
type Node struct {
	// MountSetattr is Linux 5.12, which recursive read-only mounts and mounts with
	// mapped ids need.
	MountSetattr bool
	// AppArmor and SELinux are enforced. Where they are not, what pods ask of
	// them is left out under every handler.
	AppArmor, SELinux bool
}

func (h Handler) ownKernel() bool { return h.Runtime != nil && h.Runtime.OwnKernel }

func (h Handler) runtime() string {
	name := cmp.Or(h.Runtime.Name, h.Binary)
	if h.Runtime.Version != "" && !h.Unversioned {
		name += " " + h.Runtime.Version
	}
	return printable.Clip(name, 80)
}
