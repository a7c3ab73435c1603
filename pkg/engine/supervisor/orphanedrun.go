package supervisor

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// orphanedRuns bounds how often what a runtime left is looked for: each look can miss
// what is being forked.
const orphanedRuns = 10

// killOrphanedRun ends the runtime that a supervisor was starting a container with when
// it was killed. It goes on otherwise, and starts the container after it was given up.
// It is known by what it was called with, which no other call has: the pid file, or the
// bundle, which runtimes hand on to processes that they fork.
func (o takeover) killOrphanedRun() {
	t := o.task
	pidFile := filepath.Join(t.dir, "pid")
	for range orphanedRuns {
		if !killCalled(func(args []string) bool {
			return slices.ContainsFunc(args, func(arg string) bool {
				return arg == pidFile || arg == "--pid-file="+pidFile || arg == t.journal.Bundle || arg == "--bundle="+t.journal.Bundle
			})
		}) {
			return
		}
	}
}

// killCalled kills the processes whose arguments match, with the process groups that they
// lead, and waits for their ends. It returns whether there was one.
func killCalled(match func(args []string) bool) (found bool) {
	pids, err := procfs.Processes()
	if err != nil {
		return false
	}
	for _, pid := range pids {
		if pid == os.Getpid() || !match(argumentsOf(pid)) {
			continue
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it is gone
		}
		if match(argumentsOf(pid)) { // still the same
			found = true
			if group, err := unix.Getpgid(pid); err == nil && group == pid {
				_ = unix.Kill(-pid, unix.SIGKILL)
			}
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
			hasEnded(pidfd, killedTimeout)
		}
		unix.Close(pidfd)
	}
	return found
}

// argumentsOf are what a process was called with; none of one that is gone.
func argumentsOf(pid int) []string {
	text, err := os.ReadFile(procfs.Path(pid, "cmdline"))
	if err != nil {
		return nil
	}
	var args []string
	for arg := range bytes.SplitSeq(text, []byte{0}) {
		args = append(args, string(arg))
	}
	return args
}
