// Package rules decides what a handler can do for pods on this node, and how that is known.
//
// It is pure: it turns the runtime's answers, the inspection of this node and the results of
// self-check pods into a capability.Table.
//
// Every refusal of preflight is a "no" here, because the rules call preflight. The reverse does not
// hold: preflight refuses only some of the "no", and never a "yes" or an "unknown".
package rules

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// byKernel are the capabilities that runtimes do not report and that are the same for all runtimes
// with the same kernel.
var byKernel = []capability.Name{
	capability.Privileged, capability.HostNetwork, capability.HostPID, capability.HostIPC, capability.MountPropagation, capability.BlockVolumes,
	capability.Devices, capability.Sysctls, capability.UnmaskedProc, capability.Exec, capability.PortForward, capability.InPlaceResize,
}

// modules are the answers of byKernel for WebAssembly: modules are processes on the node's kernel,
// but not containers.
var modules = map[capability.Name]capability.Known{
	capability.HostNetwork: {Answer: capability.Yes},
	capability.Exec:        {Answer: capability.No, Note: "a module runs in a process of its own, and nothing else can be started beside it"},
	capability.PortForward: {Answer: capability.Yes},
}

// request checks a pod or container that requests one capability. It returns preflight's refusal.
type request func(preflight.Handler) *preflight.Refusal

// asks has a request for each capability that preflight can refuse.
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

// Facts are the inputs of a Table.
type Facts struct {
	// Handler is the input of preflight.
	Handler preflight.Handler
	// HostNetwork means that a runtime with its own kernel is configured to use the host's network.
	// Handler.HostNetwork is also true if such a configuration is only possible.
	HostNetwork bool
	// Krun means that the handler's annotations select crun's virtual machines.
	Krun bool
	// Unsure means that the check of this node's user namespaces timed out: Handler.UserNamespaces
	// is ignored.
	Unsure bool
	Node   Node
	// Proof holds the results of self-check pods on exactly this runtime.
	Proof probe.Proof
	// Conforms are the sets that the handler promises; they count once a self-check pod has passed.
	Conforms []string
}

// Node holds facts about this node beyond those of preflight.
type Node struct {
	// Seccomp: the kernel supports it.
	Seccomp bool
	// Cgroup is the cgroup version that limits pods: 1 or 2.
	Cgroup int
	// Systemd: process 1 of this node is systemd.
	Systemd bool
	// HugePages are the kernel's page sizes, by the names of their sysfs directories.
	HugePages []string
}
