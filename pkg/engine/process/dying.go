package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// exiting is the flag of a process that the kernel takes down (PF_EXITING).
const exiting = 0x4

// Dying says whether a process has ended, is about to, or has SIGKILL on its way.
// What shares its PID namespace or its cgroup may go before it does.
func Dying(pid int) (bool, error) {
	stat, err := os.ReadFile(path(pid, "stat"))
	var status []byte
	if err == nil {
		status, err = os.ReadFile(path(pid, "status"))
	}
	if err != nil {
		if err = gone(pid, err); errdefs.IsNotFound(err) {
			return true, nil
		}
		return false, err
	}
	going, ok := goingBy(stat)
	if !ok {
		return false, fmt.Errorf("process %d: read its stat", pid)
	}
	return going || killPending(status), nil
}

// goingBy reads a process's state and flags; see proc_pid_stat(5). Pure.
func goingBy(stat []byte) (going, ok bool) {
	end := bytes.LastIndexByte(stat, ')') // its name may have anything in it
	if end < 0 {
		return false, false
	}
	fields := bytes.Fields(stat[end+1:])
	if len(fields) < 7 {
		return false, false
	}
	flags, err := strconv.ParseUint(string(fields[6]), 10, 64)
	if err != nil {
		return false, false
	}
	return bytes.ContainsAny(fields[0], "ZXx") || flags&exiting != 0, true
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
