// Package conform defines the sets of properties that handlers can promise by name, and checks them
// against what a self-check pod observed.
//
// It is pure. The promise of a set never changes: a different promise gets another version.
package conform

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Set names a set of properties.
type Set string

// Sets. Their promises are in docs/capabilities.md.
const (
	SharedKernel Set = "shared-kernel/v1"
	Sandboxed    Set = "sandboxed/v1"
	VM           Set = "vm/v1"
	Wasm         Set = "wasm/v1"
)

// Sets returns all known sets.
func Sets() []Set { return []Set{SharedKernel, Sandboxed, VM, Wasm} }

// LooksInside reports whether a set promises properties that only a program in a pod can observe.
func LooksInside(s Set) bool { return s != Wasm }

// Conflict returns why no handler can conform to both sets, or "". Pure.
func Conflict(a, b Set) string {
	shares := func(s Set) bool { return s == SharedKernel || s == Wasm }
	if shares(a) == shares(b) {
		return ""
	}
	if !shares(a) {
		a, b = b, a
	}
	return fmt.Sprintf("%q promises the node's kernel and %q another one", a, b)
}

// Kernel is the identification of a kernel.
type Kernel struct {
	Release, Version string
	// BootID is empty if it cannot be read.
	BootID string
}

// Facts are the known properties of a handler and the observations inside its pod.
type Facts struct {
	Isolation capability.Isolation
	// Modules: its runtime runs WebAssembly modules, and its images contain such modules.
	Modules bool
	Node    Kernel
	// Seen holds the observations of a self-check pod; nil if it could not observe any.
	Seen *Seen
}

// Breaches returns the missing properties of a set, each worded to follow "it does not conform to
// SET: ". Pure.
func Breaches(set Set, f Facts) []string {
	if f.Seen == nil && LooksInside(set) {
		return []string{"what its pods see is not known"}
	}
	switch set {
	case SharedKernel:
		return slices.Concat(sharedKernel(f), confined(f, false), hardened(f))
	case Sandboxed:
		return slices.Concat(ownKernel(f), confined(f, true))
	case VM:
		return slices.Concat(ownKernel(f), machine(f), confined(f, true))
	case Wasm:
		return modules(f)
	}
	return []string{"this release of berth does not have that set"}
}

// sharedKernel also accepts a kernel of the same build if the runtime is known to share the node's:
// a node that is a container itself may show another boot ID than its pods.
func sharedKernel(f Facts) []string {
	seen := f.Seen.Kernel
	if seen.BootID == f.Node.BootID || f.Isolation == capability.SharedKernel && seen.build() == f.Node.build() {
		return nil
	}
	return []string{"its pods do not run on the node's kernel, but on " + strings.TrimSpace(seen.Release+" "+seen.Version)}
}

// ownKernel requires a kernel other than the node's. Each boot of a kernel has one ID, but a
// container manager may have mounted another ID over that of the node or of the pod. A kernel of
// the same build is therefore only accepted if it shows another boot ID and the runtime is known to
// bring its own kernel. A runtime that shares the kernel always fails.
func ownKernel(f Facts) []string {
	seen := f.Seen.Kernel
	switch {
	case seen.BootID == f.Node.BootID && seen.BootID != "":
		return []string{"its pods run on the node's kernel"}
	case f.Isolation == capability.SharedKernel:
		return []string{"its runtime lets pods share the node's kernel"}
	case seen.BootID == "" && seen.build() == f.Node.build():
		return []string{"its pods run on a kernel of the same build as the node's that shows no boot ID"}
	case !f.Isolation.OwnKernel() && seen.build() == f.Node.build():
		return []string{"its pods run on a kernel of the same build as the node's, and its runtime is not known to bring another one"}
	}
	return nil
}

// build identifies the kernel regardless of its boot.
func (k Kernel) build() [2]string { return [2]string{k.Release, k.Version} }

func machine(f Facts) []string {
	if f.Isolation == capability.VM {
		return nil
	}
	is := cmp.Or(string(f.Isolation), "unknown")
	return []string{"its runtime does not report that it makes virtual machines: isolation is " + is}
}

// confined checks the promise of all sets but Wasm: pods have no privileges beyond those that they
// requested. If kernel is set, pods have a kernel of their own and may have its virtual devices.
func confined(f Facts, kernel bool) (breaches []string) {
	s := f.Seen
	if len(s.Unreadable) > 0 {
		breaches = append(breaches, "its pods have files in /dev that cannot be read: "+strings.Join(s.Unreadable, ", "))
	}
	var names []string
	for _, d := range s.Devices {
		if !kernel || !d.virtual() {
			names = append(names, d.String())
		}
	}
	if len(names) > 0 {
		breaches = append(breaches, "its pods have devices that they did not request: "+strings.Join(names, ", "))
	}
	if s.Effective != 0 || s.Bounding != 0 {
		breaches = append(breaches, fmt.Sprintf("its pods have capabilities that they did not request: %#x, and may get %#x", s.Effective, s.Bounding))
	}
	if !s.NoNewPrivileges {
		breaches = append(breaches, "its pods can gain privileges although they did not request it")
	}
	if s.Processes > own {
		breaches = append(breaches, fmt.Sprintf("its pods see %d processes, and have %d", s.Processes, own))
	}
	return breaches
}

// own is the number of processes in a self-check pod: berth-pause and the inspecting program.
const own = 2

// hardened checks the protection of a kernel that the pod shares with others.
func hardened(f Facts) (breaches []string) {
	if !f.Seen.Filtered {
		breaches = append(breaches, "no seccomp filter is in effect in its pods that requested the default profile")
	}
	if f.Seen.KernelLog {
		breaches = append(breaches, "its pods can read the kernel log of the node")
	}
	return breaches
}

func modules(f Facts) []string {
	if f.Modules {
		return nil
	}
	return []string{`it is not for WebAssembly modules only: configure a shim that runs them, and platform = "wasi/wasm"`}
}
