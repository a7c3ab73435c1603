package probe

// Kernel describes the kernel that the containers of a pod run on. Other packages use these
// properties instead of runtime names, so that a new kind of kernel changes only this file.
type Kernel struct {
	// HostProcesses is set if processes of containers are processes of the node, so that the node's
	// pids and cgroups show them. If it is not, a pod needs a first container, and paths such as
	// /proc/<pid>/ns do not lead to namespaces.
	HostProcesses bool
	// Machine is set if the kernel runs in a virtual machine, which may be neither a child of the
	// shim nor in the shim's cgroup.
	Machine bool
	// NetworkInside is set if the network stack of a pod with its own network is inside the kernel.
	// Only a command of the runtime reaches the pod's ports then.
	NetworkInside bool
	// MemoryLimit is set if the runtime shows its pods a memory of the size of their limit.
	MemoryLimit bool
	// WholePods is set if the runtime checkpoints and restores a pod as a whole, for which
	// containerd's shims have no call.
	WholePods bool
	// RefusesSELinux is set if the runtime refuses SELinux labels of processes.
	RefusesSELinux bool
	// SeccompByAnnotation is set if the runtime filters system calls only if an annotation requests
	// it.
	SeccompByAnnotation bool
	// LeastMemory is a memory limit that is sufficient to start a pod with an idle container, and
	// TooLittleMemory one that never is. 0 is unknown.
	LeastMemory, TooLittleMemory uint64
}

// KernelKind identifies a kind of kernel in records of pods.
type KernelKind string

// A kernel that a shim brings along is treated as a virtual machine, also gVisor's.
const (
	nodeKernel       KernelKind = ""
	gVisorKernel     KernelKind = "gvisor"
	gVisorShimKernel KernelKind = "gvisor-shim"
	machineKernel    KernelKind = "machine"
)

// gVisor's limits were measured with the releases in docs/runtimes.md.
const gVisorLeast, gVisorTooLittle = 24 << 20, 20 << 20

var kernels = map[KernelKind]Kernel{
	nodeKernel: {HostProcesses: true},
	gVisorKernel: {
		NetworkInside: true, MemoryLimit: true, WholePods: true, RefusesSELinux: true,
		SeccompByAnnotation: true, LeastMemory: gVisorLeast, TooLittleMemory: gVisorTooLittle,
	},
	gVisorShimKernel: {
		Machine: true, RefusesSELinux: true,
		SeccompByAnnotation: true, LeastMemory: gVisorLeast, TooLittleMemory: gVisorTooLittle,
	},
	machineKernel: {Machine: true},
}

// Facts returns the properties of a kind. A kind unknown to this build is treated as a virtual
// machine, for which the least is assumed.
func (k KernelKind) Facts() Kernel {
	if facts, known := kernels[k]; known {
		return facts
	}
	return kernels[machineKernel]
}

// KernelKind returns the kind by what r reported. A nil r, an unknown runtime, has the node's
// kernel.
func (r *Runtime) KernelKind() KernelKind {
	switch {
	case r == nil:
	case r.ShimAlone && !r.Wasm:
		return machineKernel
	case r.Name == Runsc && r.Driven != nil:
		return gVisorShimKernel
	case r.Name == Runsc:
		return gVisorKernel
	}
	return nodeKernel
}

// Kernel returns the properties of the kernel that r runs containers on.
func (r *Runtime) Kernel() Kernel { return r.KernelKind().Facts() }
