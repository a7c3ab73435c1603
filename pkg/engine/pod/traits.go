package pod

import (
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// Traits are what is true of a sandbox because of who runs it. Decided once, by TraitsOf.
type Traits struct {
	// HostProcesses: processes of containers are processes of the node, so that their
	// pids and cgroups tell what they do.
	HostProcesses bool
	// Machine: the shim brings a kernel along, as far as berth knows: in a virtual
	// machine, which may be no child of the shim, nor in the cgroup that it was told.
	Machine bool
	// OwnShim: a shim runs this sandbox and no other. It exits when it has forgotten
	// its last task.
	OwnShim bool
	// MountsRootfs: the mounts of a root filesystem are handed over with the task, so
	// that a virtual machine may take them as they are.
	MountsRootfs bool
	// CreatesEarly: the runtime is called by Create of the Task API. A supervisor calls
	// it at Start.
	CreatesEarly bool
	// JournalsStarts: each start is written down before it is made, and goes on when
	// its caller is lost.
	JournalsStarts bool
	// ClosesStdin: it ends the stdin of a container by itself when the first client is
	// gone that the container was to have (stdin_once).
	ClosesStdin bool
	// KillsTree: to kill "all" of an exec is to kill the command and its descendants.
	// The Task API does not say what that is; Kata kills the whole container.
	KillsTree bool
	// DialsInside: ports of the pod are reached by a command of the runtime, whose
	// network stack is not the node's.
	DialsInside bool
	// MemoryLimit: the runtime shows its pods a memory of the size that it is told.
	MemoryLimit bool
}

// TraitsOf decides what is true of the sandboxes of d that follow plan. Pure.
func TraitsOf(d *handler.Definition, plan Plan) Traits {
	foreign := d.Type == handler.Shim
	return Traits{
		HostProcesses:  !plan.OwnKernel,
		Machine:        foreign && plan.OwnKernel,
		OwnShim:        foreign,
		MountsRootfs:   foreign,
		CreatesEarly:   foreign,
		JournalsStarts: !foreign,
		ClosesStdin:    !foreign,
		KillsTree:      !foreign,
		DialsInside:    !foreign && plan.Runtime == probe.Runsc && plan.Net,
		MemoryLimit:    !foreign && plan.OwnKernel,
	}
}
