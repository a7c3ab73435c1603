// Package conform has the sets of properties that handlers can promise by name, and says
// which of them a self-check pod did not find.
//
// It is pure. What a set promises never changes: what is more, or less, gets another
// version.
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

// Sets. docs/capabilities.md says what each promises.
const (
	SharedKernel Set = "shared-kernel/v1"
	Sandboxed    Set = "sandboxed/v1"
	VM           Set = "vm/v1"
	Wasm         Set = "wasm/v1"
)

// Sets are all of this berth's.
func Sets() []Set { return []Set{SharedKernel, Sandboxed, VM, Wasm} }

// LooksInside says whether a set promises what only a program in a pod can see.
func LooksInside(s Set) bool { return s != Wasm }

// Conflict says why no handler can conform to two sets, or is empty. Pure.
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

// Kernel is how a kernel shows itself.
type Kernel struct {
	Release, Version string
	// BootID is empty where it cannot be read.
	BootID string
}

// Facts are what a handler is known to be, and what a pod of it saw.
type Facts struct {
	Isolation capability.Isolation
	// Modules: its runtime runs WebAssembly modules, and its images are such.
	Modules bool
	Node    Kernel
	// Seen is what a program in a self-check pod saw; nil if none could look.
	Seen *Seen
}

// Breaches are the properties of a set that are not there, each in words that stand
// after "it does not conform to SET: ". Pure.
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
	return []string{"this berth does not know that set"}
}

// sharedKernel: a node that is a container itself may show another boot ID than its pods.
func sharedKernel(f Facts) []string {
	seen := f.Seen.Kernel
	if seen.BootID == f.Node.BootID || f.Isolation == capability.SharedKernel && seen.build() == f.Node.build() {
		return nil
	}
	return []string{"its pods do not run on the node's kernel, but on " + strings.TrimSpace(seen.Release+" "+seen.Version)}
}

// ownKernel: one boot of a kernel has one ID, but a container manager may have mounted
// another one over that of the node, or of the pod. So a kernel of the same build is the
// node's unless the runtime is known to bring one, and one that shares it never does.
func ownKernel(f Facts) []string {
	seen := f.Seen.Kernel
	brings := f.Isolation == capability.VM || f.Isolation == capability.UserSpaceKernel
	switch {
	case seen.BootID == f.Node.BootID && seen.BootID != "":
		return []string{"its pods run on the node's kernel"}
	case f.Isolation == capability.SharedKernel:
		return []string{"its runtime has pods share the node's kernel"}
	case seen.BootID == "" && seen.build() == f.Node.build():
		return []string{"its pods run on a kernel that says it is the node's, and shows no boot ID"}
	case !brings && seen.build() == f.Node.build():
		return []string{"its pods run on a kernel that says it is the node's, and its runtime is not known to bring another one"}
	}
	return nil
}

// build is the kernel without which boot of it that is.
func (k Kernel) build() [2]string { return [2]string{k.Release, k.Version} }

func machine(f Facts) []string {
	if f.Isolation == capability.VM {
		return nil
	}
	is := cmp.Or(string(f.Isolation), "unknown")
	return []string{"its runtime does not report that it makes virtual machines: isolation is " + is}
}

// confined is what pods of every set can rely on: they have nothing that they did not
// ask for. Some devices are of the pod's kernel, if that is its own.
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

// own is how many processes a self-check pod has: its own and the one that looks.
const own = 2

// hardened is what keeps pods away from a kernel that is not theirs alone.
func hardened(f Facts) (breaches []string) {
	if !f.Seen.Filtered {
		breaches = append(breaches, "no seccomp filter is in effect in its pods that requested the default one")
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
	return []string{`it is not for WebAssembly modules only: that takes a shim that runs them, and platform = "wasi/wasm"`}
}
