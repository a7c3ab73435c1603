package pod

import "github.com/berth-cri/berth/pkg/handler"

// Kernel is the kernel that the containers of a sandbox run on, as what is true of it. A
// sandbox gets its own with its Runner. The rooms of the engine ask for these facts and not
// for the kind of kernel: another kind is another value here.
type Kernel struct {
	// HostProcesses: processes of containers are processes of the node, so that their
	// pids and cgroups show what they do.
	HostProcesses bool
	// Machine: it runs in a virtual machine, which may be no child of the shim, nor in
	// the cgroup that the shim was given.
	Machine bool
	// NetworkInside: a pod with a network of its own has its network stack inside, where
	// only a command of the runtime reaches its ports.
	NetworkInside bool
	// MemoryLimit: the runtime shows its pods a memory of the size that it is given.
	MemoryLimit bool
}

// The kinds of kernels. What a shim brings along is a virtual machine as far as berth knows.
var (
	nodeKernel    = Kernel{HostProcesses: true}
	gVisorKernel  = Kernel{NetworkInside: true, MemoryLimit: true}
	machineKernel = Kernel{Machine: true}
)

// kernelOf chooses the kernel of the sandboxes of d that follow plan. Pure.
func kernelOf(d *handler.Definition, plan Plan) Kernel {
	switch {
	case !plan.OwnKernel:
		return nodeKernel
	case d.Type == handler.Shim:
		return machineKernel
	}
	return gVisorKernel
}

// MustAsk is whether only the process that runs a sandbox can report what it uses.
func (k Kernel) MustAsk() bool { return !k.HostProcesses }

// DialedInside is whether ports of s are reached by a command of the runtime.
func (s *Sandbox) DialedInside() bool { return s.Spec().Plan.Net && s.NetworkInside }

// OwnShim is whether a shim runs s and no other sandbox. It exits when it has
// forgotten its last task. All else is run by supervisors.
func (s *Sandbox) OwnShim() bool { return s.Spec().Definition.Type == handler.Shim }

// MountsRootfs is whether the mounts of a root filesystem are handed over with the
// task, so that a virtual machine may take them as they are.
func (s *Sandbox) MountsRootfs() bool { return s.OwnShim() }

// CreatesEarly is whether Create of the Task API calls the runtime. A supervisor calls
// it at Start.
func (s *Sandbox) CreatesEarly() bool { return s.OwnShim() }

// JournalsStarts is whether each start is written down before it is made, and goes on
// when its caller is lost.
func (s *Sandbox) JournalsStarts() bool { return !s.OwnShim() }

// ClosesStdin is whether the stdin of a container ends by itself when the first client
// is gone that the container was to have (stdin_once).
func (s *Sandbox) ClosesStdin() bool { return !s.OwnShim() }

// KillsTree is whether to kill "all" of an exec is to kill the command and its
// descendants. The Task API does not define that; Kata kills the whole container.
func (s *Sandbox) KillsTree() bool { return !s.OwnShim() }
