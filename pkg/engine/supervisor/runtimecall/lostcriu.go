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

// errLostCRIU ends a call whose runtime would wait for ever.
var errLostCRIU = errors.New("CRIU was killed while the runtime waited for it")

const (
	// criuPoll is how often a runtime's CRIU is looked at.
	criuPoll = 500 * time.Millisecond
	// criuLost is how often in a row its CRIU has ended without that the runtime noticed it:
	// usually that takes no time at all.
	criuLost = 6
)

// lostCRIU is closed when the runtime's CRIU has ended and the runtime does not notice it. It
// reads from a socket that processes of CRIU have open, too: if CRIU was killed they may stand
// still for ever.
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

// hasDeadCRIU reports whether a process has a child that was CRIU, has ended, and is not reaped.
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

// CRIUGroup are the running processes of a runtime's process group: itself, and CRIU's.
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
