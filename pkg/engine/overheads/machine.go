package overheads

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/podstats"
	"github.com/berth-cri/berth/pkg/engine/process"
)

// member is a process that was found to be a pod's.
type member struct {
	name string
	// shim says that it is the pod's shim, machine that it runs a virtual machine itself.
	shim, machine bool
}

// beside are processes that there are beside a machine, by name: the shares of its file
// systems, and how packets come to it.
var beside = []string{"virtiofsd", "nydusd", "passt", "vhost-user-net"}

// showsMachine says whether the machine is among the processes of a pod: a machine
// monitor, whatever its name, or a shim that is one. Without it, what they use is not
// what the pod uses. Pure.
func showsMachine(all []member) bool {
	return slices.ContainsFunc(all, func(m member) bool { return m.machine || !m.shim && !slices.Contains(beside, m.name) })
}

// errNoMachine is the answer for pods whose machine was looked for in vain.
func errNoMachine() error {
	return fmt.Errorf("its shim runs a separate kernel, but no virtual machine process of the pod was found, so its usage is unknown: %w", errdefs.ErrFailedPrecondition)
}

// machineOf adds the processes that name the pod among their arguments, wherever they
// are: machine monitors are told their pod's id, and leave their parent. It fails if
// there is no machine then.
func (v *picture) machineOf(add func(pid int) error, m *measured, shim int) error {
	naming := v.processes.Naming(m.ID())
	for _, p := range naming {
		if err := add(p.PID); err != nil {
			return err
		}
	}
	naming = append(naming, v.processes.Below(shim, func(process.Process) bool { return false })...)
	groups, err := podstats.GroupsOf(m.Sandbox)
	if err != nil {
		return err
	}
	for _, group := range append(groups, m.parent) {
		pids, err := group.Processes()
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if p, there := v.processes.Find(pid); there {
				naming = append(naming, p)
			}
		}
	}
	var members []member
	for _, p := range naming {
		name, err := p.Name()
		if err != nil || v.processes.Age(p) < passing {
			continue // it has ended, or will at once
		}
		machine, _ := p.RunsMachine()
		members = append(members, member{name: name, shim: p.PID == shim, machine: machine})
	}
	if !showsMachine(members) {
		return errNoMachine()
	}
	return nil
}
