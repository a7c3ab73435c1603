package process

import (
	"bytes"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// Dying says whether a process has ended, is about to, or has SIGKILL on its way.
// What shares its PID namespace or its cgroup may go before it does.
func Dying(pid int) (bool, error) {
	stat, err := procfs.StatOf(pid)
	var status []byte
	if err == nil {
		status, err = os.ReadFile(procfs.Path(pid, "status"))
	}
	if err != nil {
		if err = gone(pid, err); errdefs.IsNotFound(err) {
			return true, nil
		}
		return false, err
	}
	return stat.Ended() || stat.Exiting() || killPending(status), nil
}

// killPending reads the signals on their way to a process; see
// proc_pid_status(5). Pure.
func killPending(status []byte) bool {
	const kill = 1 << (unix.SIGKILL - 1)
	for _, name := range []string{"SigPnd:", "ShdPnd:"} {
		_, rest, found := bytes.Cut(status, []byte("\n"+name))
		if !found {
			continue
		}
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		if mask, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64); err == nil && mask&kill != 0 {
			return true
		}
	}
	return false
}
