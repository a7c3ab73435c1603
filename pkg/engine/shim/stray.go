package shim

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// killStray kills the process of a shim that cannot be asked for it: it was started
// in the task's bundle, for that id, and its connection or its answer is of no use.
// What a shim starts has other arguments.
func killStray(s Start) error {
	pids, err := procfs.Processes()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		// Read after the open: what the pidfd refers to cannot change any more.
		if isShimOf(s, pid) {
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
		unix.Close(fd)
		if err != nil && err != unix.ESRCH {
			return err
		}
	}
	return nil
}

// isShimOf tells a shim by where it was started and by the arguments that every shim
// passes on to its server.
func isShimOf(s Start, pid int) bool {
	where, err := os.Stat(procfs.Path(pid, "cwd"))
	if err != nil {
		return false
	}
	// Not by name: the bundle's may lead over links.
	if bundle, err := os.Stat(s.Bundle); err != nil || !os.SameFile(where, bundle) {
		return false
	}
	line, err := os.ReadFile(procfs.Path(pid, "cmdline"))
	return err == nil && runsShimOf(s.ID, line)
}

// runsShimOf tells by a command line whether it is that of a task's shim, and not of
// the delete action, which cleans up after it. Pure.
func runsShimOf(id string, line []byte) bool {
	return bytes.Contains(line, []byte("\x00-id\x00"+id+"\x00")) && !bytes.HasSuffix(line, []byte("\x00delete\x00"))
}
