package processes

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// Open returns a pidfd of p; a start time of 0 matches any process with the pid. It fails with
// unix.ESRCH if the process does not exist.
func Open(p Process) (int, error) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1, err
	}
	if p.StartTime == 0 {
		return fd, nil
	}
	// Read the start time after the open: the pidfd keeps referring to the same process.
	stat, err := procfs.StatOf(p.PID)
	if err != nil || stat.Started != p.StartTime {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// IsAnother reports whether a pidfd refers to a running process other than p, because it was opened
// by pid alone after the pid was reused.
func IsAnother(pidfd int, p Process) bool {
	if p.StartTime == 0 {
		return false
	}
	if HasEnded(pidfd, 0) {
		return false
	}
	stat, err := procfs.StatOf(p.PID)
	return err != nil || stat.Started != p.StartTime
}

// HasEnded reports whether a process exits within limit.
func HasEnded(pidfd int, limit time.Duration) bool {
	for end := time.Now().Add(limit); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(max(0, time.Until(end)+time.Millisecond-1)/time.Millisecond))
		if !errors.Is(err, unix.EINTR) {
			return n > 0 || err != nil
		}
	}
}

// waitInfo is siginfo_t as waitid(2) fills it for a child.
type waitInfo struct {
	signo, errno, code int32
	_                  [int(unsafe.Sizeof(uintptr(0))) - 4]byte
	pid                int32
	uid                uint32
	status             int32
	_                  [128 - 24 - int(unsafe.Sizeof(uintptr(0)))]byte
}

// Values of waitInfo.code, from the kernel's siginfo.h.
const (
	codeExited = 1
	codeDumped = 3
	codeKilled = 2
)

// waitid never blocks, because it adds unix.WNOHANG. A pid of 0 in the result means that there is
// nothing to report yet.
func waitid(kind, id, options int) (waitInfo, error) {
	var info waitInfo
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_WAITID, uintptr(kind), uintptr(id),
			uintptr(unsafe.Pointer(&info)), uintptr(options|unix.WNOHANG), 0, 0)
		switch errno {
		case 0:
			return info, nil
		case unix.EINTR:
		default:
			return waitInfo{}, errno
		}
	}
}

// exitStatus returns the exit code, or 128 plus the signal.
func (i waitInfo) exitStatus() uint32 {
	if i.code == codeExited {
		return uint32(i.status) & 0xff
	}
	return 128 + uint32(i.status)
}

// decodeStatus decodes a status in the format of wait(2).
func decodeStatus(raw int32) uint32 {
	ws := unix.WaitStatus(raw)
	if ws.Signaled() {
		return 128 + uint32(ws.Signal())
	}
	return uint32(ws.ExitStatus())
}

// errNoExit is returned while the exit of a process is unknown.
var errNoExit = errors.New("the exit code is unknown")

// foreignExit returns the exit of a process that is not a child of this process: from /proc while
// it is a zombie, later from what Linux keeps for open pidfds since version 6.15.
func foreignExit(fd int, p Process) (uint32, error) {
	if stat, err := procfs.StatOf(p.PID); err == nil && stat.State == 'Z' && stat.Started == p.StartTime {
		return decodeStatus(stat.ExitCode), nil
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(fd, &info); err != nil {
		return 0, fmt.Errorf("%w: %w", errNoExit, err)
	}
	if info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, errNoExit
	}
	return decodeStatus(info.Exit_code), nil
}

// Identify returns a pidfd and the start time of a process that a runtime has just started.
func Identify(pid int) (int, Process, error) {
	fd, err := Open(Process{PID: pid})
	if err != nil {
		return -1, Process{}, fmt.Errorf("process %d does not exist: %w", pid, err)
	}
	stat, err := procfs.StatOf(pid)
	if err != nil {
		unix.Close(fd)
		return -1, Process{}, err
	}
	return fd, Process{PID: pid, StartTime: stat.Started}, nil
}
