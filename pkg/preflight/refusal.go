// Package preflight decides, before anything is created, whether a handler supports what a pod
// requests.
//
// It is pure: the input is what the runtime reports about itself and what is known of this node,
// the result is nil or the first Refusal.
//
// Two rules avoid guesses:
//
//   - A request that the runtime would refuse by itself, or that only protects the pod better, is
//     refused if the runtime reports that it lacks support (seccomp, AppArmor, SELinux), or if all
//     runtimes of its kind lack it (host namespaces with a separate kernel).
//   - A request that a runtime without support would silently ignore, so that a pod could see or do
//     more than it should (user namespaces, mapped ids, recursive read-only mounts), is accepted
//     only if the runtime reports support. The handler's features in the CRI's Status follow the
//     same rule.
//
// If the runtime could not be probed, nothing is known, and nothing is refused.
package preflight

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe"
)

// Refusal is a request that a handler does not support.
type Refusal struct {
	// Feature is the user's name for the request: hostNetwork, a user namespace.
	Feature string
	// Why is the reason, as a fact about the handler.
	Why string
	// Instead is the user's alternative to another handler.
	Instead string
	// prefix, if set, begins the error's text, because the kubelet looks for it there.
	prefix error
}

// Refuse checks a handler. Its error names the other handlers that pass the check and isolate pods
// at least as well; others() is called only if h fails it. The error is of the class
// FailedPrecondition and shorter than 1 KiB.
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

// maxNamed bounds the handlers in an error.
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
	// The handler is named here, because the prefix must come first.
	err := fmt.Errorf("handler %q does not support %s: %s; %s: %w", h.Name, l.Feature, printable.Clip(l.Why, 240), advice, errdefs.ErrFailedPrecondition)
	if l.prefix != nil {
		return fmt.Errorf("%w: %w", l.prefix, err)
	}
	return err
}

// Handler is what is known of a handler.
type Handler struct {
	Name string
	// Runtime is what the runtime reported about itself; nil if unknown.
	Runtime *probe.Runtime
	// Unversioned omits the runtime's version from texts that apply to all nodes.
	Unversioned bool
	// HostNetwork is set if a runtime with its own kernel is, or may be, configured to use the
	// host's network.
	HostNetwork bool
	Node        Node
	// UserNamespaces and Checkpoints return what else prevents that capability: the handler's
	// snapshotter, its shim or this node. They are called only if the runtime supports it. A nil
	// function prevents nothing.
	UserNamespaces, Checkpoints func() error
}

// Node describes the node's kernel.
type Node struct {
	// MountSetattr is set since Linux 5.12; recursive read-only mounts and mounts with mapped ids
	// need it.
	MountSetattr bool
	// AppArmor and SELinux are set if the kernel enforces them. Otherwise every handler ignores
	// what pods request of them.
	AppArmor, SELinux bool
}

func (h Handler) hostProcesses() bool { return h.Runtime.Kernel().HostProcesses }

func (h Handler) runtime() string {
	name := cmp.Or(h.Runtime.Name, filepath.Base(h.Runtime.Path))
	if h.Runtime.Version != "" && !h.Unversioned {
		name += " " + h.Runtime.Version
	}
	return printable.Clip(name, 80)
}
