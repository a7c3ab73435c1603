package supervisor

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// startPoll is the pause between two looks for what an exec's process says.
const startPoll = 10 * time.Millisecond

// awaitExec takes what came of an exec's call and waits on where the runtime gave up.
// runsc starts a child that starts the exec, and waits for that no longer than ten
// seconds, which a busy node may need. It then fails without a word and leaves the
// child at its work, so that the exec would run and nobody know of it.
func (k *ownKernel) awaitExec(ctx context.Context, e *execLaunch, failed error) error {
	var without *errCall
	if !errors.As(failed, &without) || without.message != "" {
		return failed
	}
	child, pidfd := childWith(e.pidFile)
	if child != 0 {
		defer unix.Close(pidfd)
	}
	for ended := child == 0; ; ended = hasEnded(pidfd, startPoll) {
		// The child writes its own pid, which may be half written while it is there.
		if pid, err := readPIDFile(e.pidFile); err == nil && (pid == child || child == 0) {
			return nil
		}
		if ended {
			without.message = runtimeMessage(readTail(e.call.logFile))
			return without
		}
		if ctx.Err() != nil {
			_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) // it may have ended
			hasEnded(pidfd, killedTimeout)
			return e.call.aborted(ctx, readTail(e.call.logFile))
		}
	}
}

// childWith returns the child of this process, and a pidfd of it, that has an argument;
// 0 if there is none.
func childWith(argument string) (pid, pidfd int) {
	for _, pid := range procfs.Children(os.Getpid()) {
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		line, err := os.ReadFile(procfs.Path(pid, "cmdline"))
		if err == nil && slices.Contains(strings.Split(string(line), "\x00"), argument) {
			return pid, pidfd
		}
		unix.Close(pidfd)
	}
	return 0, -1
}
