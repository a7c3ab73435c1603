package shim

import (
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// maxOOMScore is the highest score that the kernel takes.
const maxOOMScore = 1000

// diesBefore has the kernel that is out of memory take a process rather than this one,
// by as little as there is: both come after all pods, and the daemon can replace a
// supervisor, which is how its pods' exit codes and output survive.
func diesBefore(pid int) error {
	own, err := procfs.OOMScore()
	if err != nil {
		return err
	}
	return procfs.SetOOMScore(pid, min(own+1, maxOOMScore))
}
