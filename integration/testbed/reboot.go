package testbed

import (
	"errors"
	"os"
)

// PowerCut leaves of the daemon what a power cut of its host leaves: what is on
// disk. Processes, mounts, namespaces, cgroups, links, firewall rules and the state
// directory are gone. Start starts it again.
func (d *Daemon) PowerCut(t T) {
	t.Helper()
	d.Kill9(t)
	err := errors.Join(d.killProcesses(), d.unmount(), d.removeCgroups(), os.RemoveAll(d.State))
	if d.cni != nil {
		err = errors.Join(err, d.cni.removeRules(), d.cni.removeBridge())
	}
	Mustf(t, err, "cut the power")
}
