package probe

// Kernel is what is true of the kernel that the containers of a pod run on. Rooms ask for
// these facts and not for runtimes: another kind is one more value and case in this file.
type Kernel struct {
	// HostProcesses: processes of containers are processes of the node, so that their
	// pids and cgroups show what they do. Where they are not, a pod needs a first
	// container, and paths such as /proc/<pid>/ns are names, not namespaces.
	HostProcesses bool
	// Machine: it runs in a virtual machine, which may be no child of the shim, nor in
	// the cgroup that the shim was given.
	Machine bool
	// NetworkInside: a pod with a network of its own has its network stack inside, where
	// only a command of the runtime reaches its ports.
	NetworkInside bool
	// MemoryLimit: the runtime shows its pods a memory of the size that it is given.
	MemoryLimit bool
	// WholePods: the runtime checkpoints and restores a pod as a whole, which containerd's
	// shims cannot be asked for.
	WholePods bool
	// RefusesSELinux: the runtime refuses SELinux labels of processes.
	RefusesSELinux bool
	// SeccompByAnnotation: it filters system calls only if an annotation asks for that.
	SeccompByAnnotation bool
	// LeastMemory is a memory limit in which a pod with a container that does nothing
	// starts, and TooLittleMemory one in which none does. 0 is not known.
	LeastMemory, TooLittleMemory uint64
}

// KernelKind is what records of pods call a kind of kernel.
type KernelKind string

// What a shim brings along is a virtual machine as far as berth knows, gVisor included.
const (
	nodeKernel       KernelKind = ""
	gVisorKernel     KernelKind = "gvisor"
	gVisorShimKernel KernelKind = "gvisor-shim"
	machineKernel    KernelKind = "machine"
)

// gVisor's limits are those of the releases that were tried (docs/runtimes.md).
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

// Facts returns what is true of kernels of the kind. One that this build does not have is taken for
// a virtual machine, of which it assumes least.
func (k KernelKind) Facts() Kernel {
	if facts, known := kernels[k]; known {
		return facts
	}
	return kernels[machineKernel]
}

// KernelKind chooses the kind by what r reported. A nil r, of which nothing is known, has
// the node's kernel.
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

// Kernel returns what is true of the kernel that r runs containers on.
func (r *Runtime) Kernel() Kernel { return r.KernelKind().Facts() }
