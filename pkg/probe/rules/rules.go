// Package rules decides what a handler can do for pods on this node, and how
// that is known.
//
// It is pure: what the runtime said about itself, what was looked at on this node
// and what self-check pods did go in, a capability.Table comes out.
//
// What preflight refuses is "no" here, because preflight is asked, and what is "yes"
// it does not refuse. The reverse need not hold: of what a runtime does not tell
// nothing is refused, and the answer is "unknown".
package rules

import (
	"path/filepath"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// rule is what is the same for all runtimes of a kind. What no kind has is unknown.
type rule struct {
	name capability.Name
	is   map[kind]capability.Known
}

func known(a capability.Answer, note string) capability.Known {
	return capability.Known{Answer: a, Note: note}
}

var yes = known(capability.Yes, "")

var rules = []rule{
	{capability.Privileged, map[kind]capability.Known{sharing: yes, gVisor: known(capability.Yes, "on its own kernel, not on the host")}},
	{capability.HostNetwork, map[kind]capability.Known{sharing: yes, wasm: yes}},
	{capability.HostPID, map[kind]capability.Known{sharing: yes}},
	{capability.HostIPC, map[kind]capability.Known{sharing: yes}},
	{capability.MountPropagation, map[kind]capability.Known{sharing: yes}},
	{capability.BlockVolumes, map[kind]capability.Known{sharing: yes, gVisor: known(capability.No, "its kernel has no driver for block devices")}},
	{capability.Devices, map[kind]capability.Known{sharing: yes, gVisor: known(capability.Unknown, "only those that its kernel has a driver for")}},
	{capability.Sysctls, map[kind]capability.Known{sharing: yes, gVisor: known(capability.No, "it ignores them")}},
	{capability.UnmaskedProc, map[kind]capability.Known{sharing: yes, gVisor: known(capability.Yes, "it masks nothing")}},
	{capability.Exec, map[kind]capability.Known{sharing: yes, gVisor: yes, krun: known(capability.Unknown, ""), kata: yes, wasm: known(capability.No, "a module runs in a process of its own, and nothing else can be started beside it")}},
	{capability.PortForward, map[kind]capability.Known{sharing: yes, gVisor: yes, wasm: yes, kata: known(capability.Yes, "to processes that listen on the pod's address, not only on 127.0.0.1 of the machine")}},
	{capability.InPlaceResize, map[kind]capability.Known{sharing: yes, gVisor: known(capability.No, "it cannot change the limits of running containers")}},
}

// request is a pod or container that asks for one thing: it returns why preflight refuses it.
type request func(preflight.Handler) *preflight.Refusal

// asks are requests for all that preflight refuses pods by.
var asks = map[capability.Name]request{
	capability.HostNetwork:             sandbox(&runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}),
	capability.HostPID:                 sandbox(&runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_NODE}),
	capability.HostIPC:                 sandbox(&runtimeapi.NamespaceOption{Ipc: runtimeapi.NamespaceMode_NODE}),
	capability.UserNamespaces:          preflight.UserNamespaces,
	capability.IDMappedMounts:          container(nil, &runtimeapi.Mount{UidMappings: mapping, GidMappings: mapping}),
	capability.RecursiveReadOnlyMounts: preflight.RecursiveReadOnly,
	capability.MountPropagation:        container(nil, &runtimeapi.Mount{Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL}),
	capability.Seccomp:                 container(&runtimeapi.LinuxContainerSecurityContext{Seccomp: &runtimeapi.SecurityProfile{}}),
	capability.AppArmor:                container(&runtimeapi.LinuxContainerSecurityContext{Apparmor: &runtimeapi.SecurityProfile{}}),
	capability.SELinux:                 container(&runtimeapi.LinuxContainerSecurityContext{SelinuxOptions: &runtimeapi.SELinuxOption{Level: "s0"}}),
	capability.Checkpoint:              preflight.Checkpoints,
	capability.PodCheckpoint:           preflight.PodCheckpoints,
}

var mapping = []*runtimeapi.IDMapping{{HostId: 1 << 16, Length: 1 << 16}}

func sandbox(o *runtimeapi.NamespaceOption) request {
	config := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: o},
	}}
	return func(h preflight.Handler) *preflight.Refusal { return preflight.Sandbox(config, h) }
}

func container(sc *runtimeapi.LinuxContainerSecurityContext, mounts ...*runtimeapi.Mount) request {
	config := &runtimeapi.ContainerConfig{Mounts: mounts, Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: sc}}
	return func(h preflight.Handler) *preflight.Refusal { return preflight.Container(config, h) }
}

// Facts are what a Table follows from.
type Facts struct {
	// Handler is what preflight goes by.
	Handler preflight.Handler
	// HostNetwork is whether a runtime with a kernel of its own was configured to use the
	// host's network. Handler.HostNetwork is also true where that may be.
	HostNetwork bool
	// Krun is whether the handler's annotations have crun make virtual machines.
	Krun bool
	// Unsure is whether the look at the user namespaces of this node did not end in time:
	// Handler.UserNamespaces counts for nothing then.
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
