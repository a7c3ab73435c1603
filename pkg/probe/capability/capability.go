// Package capability names what a handler can do for a pod, and how that is known.
//
// It holds data only: packages that match pods to handlers outside a node do not depend on the code
// that probes runtimes.
package capability

import (
	"cmp"
	"fmt"
	"slices"
)

// Name is a capability that a pod can request or that an operator wants to know. It is part of
// files and of output: names are added, never changed.
type Name string

// Capabilities that pods request.
const (
	// Privileged: securityContext.privileged.
	Privileged Name = "privileged"
	// HostNetwork, HostPID and HostIPC are the host's namespaces.
	HostNetwork Name = "host-network"
	HostPID     Name = "host-pid"
	HostIPC     Name = "host-ipc"
	// UserNamespaces: hostUsers: false.
	UserNamespaces Name = "user-namespaces"
	// IDMappedMounts: volumes of pods with user namespaces.
	IDMappedMounts Name = "id-mapped-mounts"
	// RecursiveReadOnlyMounts: recursiveReadOnly: Enabled.
	RecursiveReadOnlyMounts Name = "recursive-read-only-mounts"
	// MountPropagation: mountPropagation: Bidirectional.
	MountPropagation Name = "mount-propagation"
	// Seccomp, AppArmor and SELinux: profiles and labels take effect, or do not matter because
	// containers have a kernel of their own.
	Seccomp  Name = "seccomp"
	AppArmor Name = "apparmor"
	SELinux  Name = "selinux"
	// BlockVolumes: volumeDevices.
	BlockVolumes Name = "block-volumes"
	// Devices: of device plugins, of claims, of CDI.
	Devices Name = "devices"
	// HugePages: as a resource or a medium.
	HugePages Name = "hugepages"
	// Sysctls: those of a pod's namespaces.
	Sysctls Name = "sysctls"
	// UnmaskedProc: procMount: Unmasked.
	UnmaskedProc Name = "unmasked-proc"
	// Exec: probes and hooks that run a command, and kubectl exec.
	Exec Name = "exec"
)

// Capabilities that operators look for.
const (
	Checkpoint    Name = "checkpoint"
	PodCheckpoint Name = "pod-checkpoint"
	CgroupV1      Name = "cgroup-v1"
	CgroupV2      Name = "cgroup-v2"
	InPlaceResize Name = "in-place-resize"
	PortForward   Name = "port-forward"
	SystemdCgroup Name = "systemd-cgroup"
	NetDevices    Name = "net-devices"
)

// Names returns all known names in display order.
func Names() []Name {
	return []Name{
		Privileged, HostNetwork, HostPID, HostIPC, UserNamespaces, IDMappedMounts, RecursiveReadOnlyMounts, MountPropagation,
		Seccomp, AppArmor, SELinux, BlockVolumes, Devices, HugePages, Sysctls, UnmaskedProc, Exec, PortForward,
		InPlaceResize, Checkpoint, PodCheckpoint, CgroupV1, CgroupV2, SystemdCgroup, NetDevices,
	}
}

// Answer is yes, no or unknown.
type Answer string

// Answers. Unknown is also the answer for a name that a table lacks.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)

// Source is the evidence for an answer.
type Source string

// Sources, from the weakest to the strongest.
const (
	// Declared: the runtime or its configuration reports it, or it follows from the name that the
	// runtime reports.
	Declared Source = "declared"
	// Probed: it follows from an inspection of the node or of the runtime's files.
	Probed Source = "probed"
	// Ran: a self-check pod tried it.
	Ran Source = "ran"
)

// Isolation is how a container is separated from the host.
type Isolation string

// Classes of isolation, from the weakest to the strongest. The empty one means unknown.
const (
	SharedKernel    Isolation = "shared-kernel"
	UserSpaceKernel Isolation = "user-space-kernel"
	VM              Isolation = "vm"
)

// OwnKernel reports whether containers are known to run on a kernel other than the node's.
func (i Isolation) OwnKernel() bool { return i == UserSpaceKernel || i == VM }

// Known is an answer with its source. The zero value means unknown.
type Known struct {
	Answer Answer `json:"answer"`
	// Source is empty if the answer is unknown.
	Source Source `json:"source,omitempty"`
	// Note is one line about the answer for users; may be empty.
	Note string `json:"note,omitempty"`
}

// Table holds the capabilities of one handler. In the zero value all are unknown. Tables are shared
// between callers and must not be changed after they are published.
type Table struct {
	Isolation Isolation `json:"isolation,omitempty"`
	// IsolationSource is the evidence for Isolation; empty if it is unknown or not recorded.
	IsolationSource Source `json:"isolationSource,omitempty"`
	// SeccompActions are the actions that a container's seccomp filter may use, by their OCI names,
	// sorted; empty means unknown.
	SeccompActions []string `json:"seccompActions,omitempty"`
	// Conforms are the conformance sets that the handler promises and that self-check pods
	// confirmed, such as "sandboxed/v1".
	Conforms     []string       `json:"conforms,omitempty"`
	Capabilities map[Name]Known `json:"capabilities,omitempty"`
}

// Of returns the answer for a name.
func (t Table) Of(n Name) Known {
	k := t.Capabilities[n]
	k.Answer = cmp.Or(k.Answer, Unknown)
	return k
}

// Set adds or replaces an answer.
func (t *Table) Set(n Name, a Answer, s Source, note string) {
	if t.Capabilities == nil {
		t.Capabilities = map[Name]Known{}
	}
	t.Capabilities[n] = Known{a, s, note}
}

// Sorted returns the names in the table: those of Names in their order, then others by name.
func (t Table) Sorted() []Name {
	var all, others []Name
	for _, n := range Names() {
		if _, there := t.Capabilities[n]; there {
			all = append(all, n)
		}
	}
	for n := range t.Capabilities {
		if !slices.Contains(all, n) {
			others = append(others, n)
		}
	}
	slices.Sort(others)
	return append(all, others...)
}

// Empty reports whether the table has neither isolation nor capabilities.
func (t Table) Empty() bool { return t.Isolation == "" && len(t.Capabilities) == 0 }

// Validate returns an error if a table from outside has an unknown isolation, answer or source. It
// accepts unknown names, because a newer berth may define more.
func (t Table) Validate() error {
	err := cmp.Or(
		oneOf("isolation", t.Isolation, SharedKernel, UserSpaceKernel, VM, ""),
		oneOf("isolationSource", t.IsolationSource, Declared, Probed, Ran, ""),
	)
	for name, k := range t.Capabilities {
		at := "capabilities." + string(name)
		err = cmp.Or(err, oneOf(at+".answer", k.Answer, Yes, No, Unknown), oneOf(at+".source", k.Source, Declared, Probed, Ran, ""))
	}
	return err
}

// oneOf returns an error if value is not one of words. The error names the first three.
func oneOf[T ~string](field string, value T, words ...T) error {
	if slices.Contains(words, value) {
		return nil
	}
	return fmt.Errorf("%s %q must be one of %s, %s and %s", field, value, words[0], words[1], words[2])
}
