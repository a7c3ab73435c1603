package rules

import (
	"path/filepath"

	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/probe"
)

// Facts are what a Table follows from.
type Facts struct {
	// Handler is what preflight goes by.
	Handler preflight.Handler
	// HostNetwork says whether a runtime with a kernel of its own was told to use the
	// host's network. Handler.HostNetwork is also true where that may be.
	HostNetwork bool
	// Krun says that the handler's annotations have crun make virtual machines.
	Krun bool
	// Unsure says that whether this node has user namespaces was not found out in time:
	// what Handler.UserNamespaces says counts for nothing then.
	Unsure bool
	Node   Node
	// Proof is what self-check pods did on exactly this runtime.
	Proof probe.Proof
	// Conforms are the sets of properties that the handler promises; they count if
	// self-check pods ran.
	Conforms []string
}

// Node is what was looked at on this node beside what preflight goes by.
type Node struct {
	// Seccomp: the kernel has it.
	Seccomp bool
	// Cgroup is the version by which pods are limited: 1 or 2.
	Cgroup int
	// Systemd runs this node.
	Systemd bool
	// HugePages are the sizes that the kernel has, as its directories are called.
	HugePages []string
}

// kind is what the rules tell runtimes apart by.
type kind int

const (
	unknownKind kind = iota
	// sharing runtimes run containers as processes of the host.
	sharing
	gVisor
	// kata and krun run them in virtual machines; krun is crun, which looks like one
	// that shares the host's kernel to everybody else.
	kata
	krun
	// wasm shims run modules in processes of the host.
	wasm
)

// runs is the file name of the OCI runtime: that which a shim drives, if it does.
func (f Facts) runs() string {
	if rt := f.Handler.Runtime; rt != nil && rt.Driven != nil {
		return filepath.Base(rt.Driven.Path)
	}
	return f.Handler.Binary
}
