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

// IsFirstOfNamespace reports whether a process is pid 1 of a pid namespace of its
// own, with which all others of the container end.
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

// runcInit is the name of the process in which runc prepares a container, until it
// becomes the container's program.
const runcInit = "runc:[2:INIT]\n"

// programPatience bounds the wait for a program whose file is slow to be read.
const programPatience = 10 * time.Second

// AwaitProgram waits until a process has become the container's program, or has
// ended. runc answers a moment before: a signal that came then would end runc, and
// the program would never have run.
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

// KilledTimeout is how long a killed process may take to be gone.
const KilledTimeout = 5 * time.Second

// KillCalled kills the processes whose arguments match, with the process groups that they
// lead, and waits for their ends. It returns whether there was one.
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

// Arguments are what a process was called with; empty for one that is gone.
func Arguments(pid int) []string {
	text, _ := os.ReadFile(procfs.Path(pid, "cmdline"))
	return strings.Split(string(text), "\x00")
}
