// Package preflight decides, before anything is done, whether a handler can give
// a pod what it asks for.
//
// It is pure: what the runtime said about itself and what is known of this node
// go in, nothing or the first Refusal comes out.
//
// Two rules keep it from guessing. What a runtime would refuse by itself, or what
// changes only how well a pod is guarded, is refused when the runtime says that
// it lacks it (seccomp, AppArmor, SELinux), or when its kind is known to (host
// namespaces on a kernel of its own). What a runtime that does not know it would
// silently leave out, so that a pod sees or may do more than it should (user
// namespaces, mapped ids, recursive read-only mounts), needs a runtime that says
// that it has it; the handler's features in the CRI's Status follow the same rule.
// Of a runtime that could not be asked nothing is known, and nothing is refused.
package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe"
)

// Refusal is something that was asked for and that a handler does not have.
type Refusal struct {
	// Feature is what the user called it: hostNetwork, a user namespace.
	Feature string
	// Why is the reason, about the handler.
	Why string
	// Instead is what else the user can do than to use another handler.
	Instead string
	// word, if any, is what the kubelet looks for at the beginning of the text.
	word error
}

// Refuse checks a handler, and says of what it lacks which of the others have it:
// those that pass the same check, and isolate pods no less. others is called only then. The error is of the
// class FailedPrecondition and shorter than 1 KiB.
func Refuse(h Handler, others func() []Handler, check func(Handler) *Refusal) error {
	lack := check(h)
	if lack == nil {
		return nil
	}
	var can []string
	for _, o := range others() {
		if o.Name != h.Name && o.Runtime != nil && (h.hostProcesses() || !o.hostProcesses()) && check(o) == nil {
			can = append(can, o.Name)
		}
	}
	slices.Sort(can)
	return lack.refusal(h, can)
}

// maxNamed is how many handlers an error names.
const maxNamed = 6

func (l *Refusal) refusal(h Handler, can []string) error {
	advice := "no ready handler of this node supports it: " + l.Instead
	if !h.hostProcesses() {
		advice = "no ready handler of this node with a kernel for each pod supports it: " + l.Instead
	}
	if len(can) > 0 {
		more := ""
		if n := len(can) - maxNamed; n > 0 {
			can, more = can[:maxNamed], fmt.Sprintf(" and %d more", n)
		}
		advice = fmt.Sprintf("use a handler that supports it (%s%s), or %s", strings.Join(can, ", "), more, l.Instead)
	}
	// The handler is named here, because nothing is put before a word of the kubelet's.
	err := fmt.Errorf("handler %q does not support %s: %s; %s: %w", h.Name, l.Feature, printable.Clip(l.Why, 240), advice, errdefs.ErrFailedPrecondition)
	if l.word != nil {
		return fmt.Errorf("%w: %w", l.word, err)
	}
	return err
}

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

func (h Handler) hostProcesses() bool { return h.Runtime.Kernel().HostProcesses }

func (h Handler) runtime() string {
	name := cmp.Or(h.Runtime.Name, h.Binary)
	if h.Runtime.Version != "" && !h.Unversioned {
		name += " " + h.Runtime.Version
	}
	return printable.Clip(name, 80)
}
