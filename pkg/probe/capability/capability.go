// Package capability has the words for what a handler can do for a pod, and for
// how that is known.
//
// It is data only, so that what compares pods with handlers away from a node need
// not know how runtimes are asked.
package capability

import (
	"cmp"
	"fmt"
	"slices"
)

// Name is one thing that a pod can ask of a handler, or that an operator wants to
// know of it. It is part of files and of output: names are added, never changed.
type Name string

// What pods ask for.
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
	// Seccomp, AppArmor and SELinux: profiles and labels are put into effect, or
	// mean nothing because containers have a kernel of their own.
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

// What operators ask for.
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

// Names are all of this berth's, in the order in which people read them.
func Names() []Name {
	return []Name{
		Privileged, HostNetwork, HostPID, HostIPC, UserNamespaces, IDMappedMounts, RecursiveReadOnlyMounts, MountPropagation,
		Seccomp, AppArmor, SELinux, BlockVolumes, Devices, HugePages, Sysctls, UnmaskedProc, Exec, PortForward,
		InPlaceResize, Checkpoint, PodCheckpoint, CgroupV1, CgroupV2, SystemdCgroup, NetDevices,
	}
}

// Answer is what is known about a capability.
type Answer string

// Answers. Unknown is also what a table that does not have a name says of it.
const (
	Yes     Answer = "yes"
	No      Answer = "no"
	Unknown Answer = "unknown"
)

// Source is how an answer is known.
type Source string

// Sources, from the weakest to the strongest.
const (
	// Declared: the runtime or its configuration says so, or it follows from which
	// runtime it says that it is.
	Declared Source = "declared"
	// Probed: something was looked at that it follows from.
	Probed Source = "probed"
	// Ran: a pod did it.
	Ran Source = "ran"
)

// Isolation is what stands between a container and the host.
type Isolation string

// Classes of isolation, from the weakest to the strongest. The empty one is not known.
const (
	SharedKernel    Isolation = "shared-kernel"
	UserSpaceKernel Isolation = "user-space-kernel"
	VM              Isolation = "vm"
)

// Known is an answer and where it is from. The zero value is not known.
type Known struct {
	Answer Answer `json:"answer"`
	// Source is empty if the answer is unknown.
	Source Source `json:"source,omitempty"`
	// Note is one line about the answer that users should see; may be empty.
	Note string `json:"note,omitempty"`
}

// Table is what is known of one handler. The zero value knows nothing. Who has one
// from somebody else does not change it.
type Table struct {
	Isolation Isolation `json:"isolation,omitempty"`
	// IsolationSource is how that is known; empty if it is not, or nobody says.
	IsolationSource Source `json:"isolationSource,omitempty"`
	// SeccompActions are what filters of containers may do about a system call, by
	// the OCI's names, sorted; empty is not known.
	SeccompActions []string `json:"seccompActions,omitempty"`
	// Conforms are the sets of properties that the handler promises and that self-check
	// pods found, such as "sandboxed/v1".
	Conforms     []string       `json:"conforms,omitempty"`
	Capabilities map[Name]Known `json:"capabilities,omitempty"`
}

// Of is what is known about a name.
func (t Table) Of(n Name) Known {
	k := t.Capabilities[n]
	k.Answer = cmp.Or(k.Answer, Unknown)
	return k
}

// Set adds an answer, or takes the place of the one there is.
func (t *Table) Set(n Name, a Answer, s Source, note string) {
	if t.Capabilities == nil {
		t.Capabilities = map[Name]Known{}
	}
	t.Capabilities[n] = Known{a, s, note}
}

// Sorted are the names that the table has: those of Names in their order, then
// others by name.
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

// Empty says that nothing is known.
func (t Table) Empty() bool { return t.Isolation == "" && len(t.Capabilities) == 0 }

// Validate says what in a table from outside is no word of this package. Names are
// not looked at: a newer berth may know more of them.
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

// oneOf refuses a value that is none of the words, of which it names the first three.
func oneOf[T ~string](field string, value T, words ...T) error {
	if slices.Contains(words, value) {
		return nil
	}
	return fmt.Errorf("%s %q must be one of %s, %s and %s", field, value, words[0], words[1], words[2])
}
