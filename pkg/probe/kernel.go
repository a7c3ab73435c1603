package probe

import (
	"cmp"
	"path/filepath"
	"strings"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// This file recognizes the kind of kernel that a runtime's containers run on, and has the properties
// and the capabilities that follow from the kind.

// Kernel describes the kernel that the containers of a pod run on. Other packages use these
// properties instead of runtime names. A new kernel that a shim brings along changes only this
// file. A kernel of an OCI runtime also needs the runtime's name in oci.go and its commands in
// package supervisor (kernels).
type Kernel struct {
	// HostProcesses is set if processes of containers are processes of the node, so that the node's
	// pids and cgroups show them. Otherwise a sandbox needs a first container, and paths such as
	// /proc/<pid>/ns do not lead to namespaces.
	HostProcesses bool
	// Machine is set if the kernel runs in a virtual machine, which may be neither a child of the
	// shim nor in the shim's cgroup.
	Machine bool
	// NetworkInside is set if the network stack of a pod with its own network is inside the kernel.
	// Only a command of the runtime reaches the pod's ports then.
	NetworkInside bool
	// MemoryLimit is set if pods see their memory limit as the size of the memory.
	MemoryLimit bool
	// WholePods is set if the runtime checkpoints and restores pods, for which containerd's shims
	// have no call.
	WholePods bool
	// RefusesSELinux is set if the runtime refuses SELinux labels of processes.
	RefusesSELinux bool
	// SeccompByAnnotation is set if the runtime filters system calls only with an annotation.
	SeccompByAnnotation bool
	// LeastMemory is a memory limit that is sufficient to start a pod with an idle container, and
	// TooLittleMemory one that is never sufficient. 0 is unknown.
	LeastMemory, TooLittleMemory uint64
}

// KernelKind identifies a kind of kernel in records of pods.
type KernelKind string

// A kernel that a shim brings along is treated as a virtual machine, even gVisor's.
const (
	nodeKernel          KernelKind = ""
	gVisorKernel        KernelKind = "gvisor"
	gVisorShimKernel    KernelKind = "gvisor-shim"     // runsc, driven by a runc shim
	gVisorOwnShimKernel KernelKind = "gvisor-own-shim" // containerd-shim-runsc-v1
	kataKernel          KernelKind = "kata"
	machineKernel       KernelKind = "machine" // of an unknown shim
	// krunKernel is for crun's virtual machines. Records of pods do not have it, because these
	// machines are processes of the node.
	krunKernel KernelKind = "krun"
)

// shims are the shims with a known kernel and without an OCI runtime, by prefixes of their reported
// names and of their file names.
var shims = []struct {
	reported, file string
	kind           KernelKind
}{
	{"io.containerd.kata", "containerd-shim-kata", kataKernel},
	{"io.containerd.runsc", "containerd-shim-runsc", gVisorOwnShimKernel},
}

// kernel holds what depends on the kind. table has the isolation, and the answers that are the same
// for all runtimes with this kernel, without sources; an absent answer is unknown.
type kernel struct {
	facts Kernel
	table capability.Table
}

var kernels = map[KernelKind]kernel{
	nodeKernel: {
		facts: Kernel{HostProcesses: true},
		table: capability.Table{Isolation: capability.SharedKernel, Capabilities: map[capability.Name]capability.Known{
			capability.HostNetwork: yes, capability.HostPID: yes, capability.HostIPC: yes,
			capability.Privileged: yes, capability.Sysctls: yes, capability.UnmaskedProc: yes,
			capability.MountPropagation: yes, capability.BlockVolumes: yes, capability.Devices: yes,
			capability.HugePages: yes, capability.InPlaceResize: yes,
			capability.Exec: yes, capability.PortForward: yes,
		}},
	},
	gVisorKernel: {
		facts: Kernel{
			NetworkInside: true, MemoryLimit: true, WholePods: true, RefusesSELinux: true,
			SeccompByAnnotation: true, LeastMemory: gVisorLeast, TooLittleMemory: gVisorTooLittle,
		},
		table: gVisorTable,
	},
	gVisorShimKernel: {
		facts: Kernel{
			Machine: true, RefusesSELinux: true,
			SeccompByAnnotation: true, LeastMemory: gVisorLeast, TooLittleMemory: gVisorTooLittle,
		},
		table: gVisorTable,
	},
	gVisorOwnShimKernel: {facts: Kernel{Machine: true}, table: gVisorTable},
	kataKernel: {
		facts: Kernel{Machine: true},
		table: capability.Table{Isolation: capability.VM, Capabilities: map[capability.Name]capability.Known{
			capability.Exec:        yes,
			capability.PortForward: {Answer: capability.Yes, Note: "to processes that listen on the pod's address, not only on 127.0.0.1 of the machine"},
		}},
	},
	machineKernel: {facts: Kernel{Machine: true}},
	krunKernel:    {facts: Kernel{HostProcesses: true}, table: capability.Table{Isolation: capability.VM}},
}

var yes = capability.Known{Answer: capability.Yes}

// gVisor's limits were measured with the releases in docs/runtimes.md.
const gVisorLeast, gVisorTooLittle = 24 << 20, 20 << 20

var gVisorTable = capability.Table{
	Isolation:      capability.UserSpaceKernel,
	SeccompActions: []string{"SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP"},
	Capabilities: map[capability.Name]capability.Known{
		capability.Privileged:    {Answer: capability.Yes, Note: "on its own kernel, not on the host"},
		capability.Seccomp:       {Note: "Localhost profiles; others only with --oci-seccomp"},
		capability.BlockVolumes:  {Answer: capability.No, Note: "its kernel has no driver for block devices"},
		capability.Devices:       {Note: "only those that its kernel has a driver for"},
		capability.Sysctls:       {Answer: capability.No, Note: "it ignores them"},
		capability.UnmaskedProc:  {Answer: capability.Yes, Note: "it masks nothing"},
		capability.Exec:          yes,
		capability.PortForward:   yes,
		capability.InPlaceResize: {Answer: capability.No, Note: "it cannot change the limits of running containers"},
	},
}

// Facts returns the properties of a kind. A kind that this build does not define is treated as a
// virtual machine of an unknown shim.
func (k KernelKind) Facts() Kernel {
	if known, ok := kernels[k]; ok {
		return known.facts
	}
	return kernels[machineKernel].facts
}

// KernelKind derives the kind from what r reported. A nil r, an unknown runtime, has the node's
// kernel.
func (r *Runtime) KernelKind() KernelKind {
	kind, _ := r.kernel()
	return kind
}

// Kernel returns the properties of the kernel that r runs containers on.
func (r *Runtime) Kernel() Kernel { return r.KernelKind().Facts() }

// KernelTable returns the capabilities that follow from the handler's kernel alone. IsolationSource
// is the source of all answers; the table is empty if the kernel is not known. krun is set if the
// handler's annotations select crun's virtual machines, which r does not report.
func (r *Runtime) KernelTable(krun bool) capability.Table {
	kind, source := r.kernel()
	switch {
	case r.Name != Crun:
	case krun:
		kind = krunKernel
	case filepath.Base(cmp.Or(r.Driven, &Identity{Path: r.Path}).Path) == "krun": // crun runs virtual machines under this name
		kind, source = krunKernel, capability.Probed
	}
	if source == "" {
		return capability.Table{}
	}
	t := kernels[kind].table
	t.IsolationSource = source
	return t
}

// kernel returns the kind and how it is known; the source is empty if the kind is only presumed.
func (r *Runtime) kernel() (KernelKind, capability.Source) {
	switch {
	case r == nil:
		return nodeKernel, ""
	case r.Name == Runsc && r.Driven != nil:
		return gVisorShimKernel, capability.Declared
	case r.Name == Runsc:
		return gVisorKernel, capability.Declared
	case r.Name != "", r.WasmDeclared:
		return nodeKernel, capability.Declared
	case r.Wasm:
		return nodeKernel, capability.Probed
	case r.ShimAlone:
		return shimKernel(r.Path, r.ShimName)
	}
	return nodeKernel, ""
}

// shimKernel is kernel for a shim that drives no OCI runtime and runs no WebAssembly. If the shim
// reports no name, its file name decides.
func shimKernel(path, name string) (KernelKind, capability.Source) {
	for _, s := range shims {
		switch {
		case strings.HasPrefix(name, s.reported):
			return s.kind, capability.Declared
		case name == "" && strings.HasPrefix(filepath.Base(path), s.file):
			return s.kind, capability.Probed
		}
	}
	return machineKernel, ""
}
