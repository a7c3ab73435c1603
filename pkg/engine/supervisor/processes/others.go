package processes

import (
	"bytes"
	"context"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// IsFirstOfNamespace reports whether a process is pid 1 of its own PID namespace. The container's
// other processes then exit with it.
func IsFirstOfNamespace(pid int) bool {
	b, err := os.ReadFile(procfs.Path(pid, "status"))
	if err != nil {
		return false
	}
	for line := range bytes.Lines(b) {
		if ids, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			fields := bytes.Fields(ids)
			return len(fields) > 1 && string(fields[len(fields)-1]) == "1"
		}
	}
	return false
}

// runcInit is the name of the process in which runc prepares a container, until it executes the
// container's program.
const runcInit = "runc:[2:INIT]\n"

// programPatience bounds the wait for a program that is slow to load.
const programPatience = 10 * time.Second

// AwaitProgram waits until a process executes the container's program, or has exited. runc returns
// a moment earlier: a signal in between would end runc's process before the program runs.
func AwaitProgram(ctx context.Context, pid, pidfd int) {
	for begin := time.Now(); time.Since(begin) < programPatience && ctx.Err() == nil; {
		name, err := os.ReadFile(procfs.Path(pid, "comm"))
		if err != nil || string(name) != runcInit {
			return
		}
		if HasEnded(pidfd, time.Millisecond) {
			return
		}
	}
}

// KilledTimeout is how long a killed process may take to exit.
const KilledTimeout = 5 * time.Second

// KillCalled kills the processes with matching arguments, with the process groups that they lead,
// and waits for their exit. It reports whether there were any.
func KillCalled(match func(args []string) bool) (found bool) {
	pids, err := procfs.Processes()
	if err != nil {
		return false
	}
	for _, pid := range pids {
		if pid == os.Getpid() || !match(Arguments(pid)) {
			continue
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it is gone
		}
		if match(Arguments(pid)) { // still the same
			found = true
			if group, err := unix.Getpgid(pid); err == nil && group == pid {
				_ = unix.Kill(-pid, unix.SIGKILL)
			}
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
			HasEnded(pidfd, KilledTimeout)
		}
		unix.Close(pidfd)
	}
	return found
}

// Arguments returns the command line of a process; one empty string if it is gone.
func Arguments(pid int) []string {
	text, _ := os.ReadFile(procfs.Path(pid, "cmdline"))
	return strings.Split(string(text), "\x00")
}
