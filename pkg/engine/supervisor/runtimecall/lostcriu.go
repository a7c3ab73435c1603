package runtimecall

import (
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
)

// errLostCRIU ends a call that would wait forever.
var errLostCRIU = errors.New("CRIU was killed while the runtime waited for it")

const (
	// criuPoll is the interval of checks of a runtime's CRIU.
	criuPoll = 500 * time.Millisecond
	// criuLost is the number of consecutive checks after which an exited CRIU that the runtime has
	// not reaped counts as lost. Usually the runtime reaps CRIU at once.
	criuLost = 6
)

// lostCRIU returns a channel that is closed when the runtime's CRIU has exited, but is not reaped
// by the runtime. The runtime reads from a socket that other CRIU processes hold open too; after
// CRIU was killed, these processes may be stopped forever.
func (r *invocation) lostCRIU() <-chan struct{} {
	lost := make(chan struct{})
	go func() {
		look := time.NewTicker(criuPoll)
		defer look.Stop()
		for seen := 0; seen < criuLost; {
			select {
			case <-r.ended:
				return
			case <-look.C:
			}
			if hasDeadCRIU(r.pid) {
				seen++
			} else {
				seen = 0
			}
		}
		close(lost)
	}()
	return lost
}

// hasDeadCRIU reports whether a process has a CRIU child that has exited and is not reaped.
func hasDeadCRIU(pid int) bool {
	for _, child := range procfs.Children(pid) {
		if stat, err := procfs.StatOf(child); err == nil && stat.Ended() && isCRIU(child) {
			return true
		}
	}
	return false
}

// isCRIU reports whether a process is CRIU, by its name.
func isCRIU(pid int) bool {
	name, err := os.ReadFile(procfs.Path(pid, "comm"))
	return err == nil && strings.TrimSpace(string(name)) == "criu"
}

// CRIUGroup returns the running processes of a runtime's process group: the runtime and CRIU.
func CRIUGroup(runtime processes.Process) []int {
	pids, err := procfs.Processes()
	if err != nil {
		return nil
	}
	var group []int
	for _, pid := range pids {
		if of, err := unix.Getpgid(pid); err != nil || of != runtime.PID {
			continue
		}
		stat, err := procfs.StatOf(pid)
		if err != nil || stat.Ended() || stat.Started < runtime.StartTime {
			continue
		}
		if pid == runtime.PID && stat.Started == runtime.StartTime || isCRIU(pid) {
			group = append(group, pid)
		}
	}
	return group
}
