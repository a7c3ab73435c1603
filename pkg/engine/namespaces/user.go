package namespaces

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/coredump"
	"github.com/berth-cri/berth/pkg/engine/thread"
)

// User is a user namespace: one range of user ids and one of group ids. Both begin at 0 inside, so
// that the namespace has a root.
type User struct {
	UIDs specs.LinuxIDMapping `json:"uids"`
	GIDs specs.LinuxIDMapping `json:"gids"`
}

// createInUser creates the user namespace, and the others inside it: the permissions in a namespace
// depend on the user namespace that owns it.
func (r *Request) createInUser(writes []write) (*Paths, error) {
	var ns Paths
	err := thread.Run(func() error {
		h, err := r.startHolder()
		if err != nil {
			return err
		}
		defer h.end()
		if err := r.join(h.Pid); err != nil {
			return err
		}
		if err := r.setUp(writes); err != nil {
			return err
		}
		return r.mount(&ns, h.Pid)
	})
	if err != nil {
		return nil, fmt.Errorf("user namespace: %w%s", err, limitHint(err))
	}
	return &ns, nil
}

// holder is the process in which a user namespace is created. It is stopped at its exec, so that it
// never runs a program.
type holder struct{ *os.Process }

// startHolder requires a thread that lives as long as the holder: when the thread exits, the kernel
// sends the holder its Pdeathsig, SIGKILL.
func (r *Request) startHolder() (*holder, error) {
	p, err := os.StartProcess("/proc/self/exe", []string{"berth-user-namespace"}, &os.ProcAttr{
		Sys: &syscall.SysProcAttr{
			Cloneflags:                 unix.CLONE_NEWUSER,
			Unshareflags:               uintptr(r.flags()), // created after the ids are mapped, so owned by the root of the user namespace
			UidMappings:                idMap(r.User.UIDs),
			GidMappings:                idMap(r.User.GIDs),
			GidMappingsEnableSetgroups: true,
			Ptrace:                     true,
			Pdeathsig:                  unix.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("start a process: %w", err)
	}
	return &holder{p}, nil
}

func idMap(m specs.LinuxIDMapping) []syscall.SysProcIDMap {
	return []syscall.SysProcIDMap{{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)}}
}

// end kills and reaps the holder. Its pid is not reused before that.
func (h *holder) end() {
	_ = h.Kill() // if it is already dead, a signal killed it
	_, _ = h.Wait()
}

// join moves the thread into the namespaces of a process, except the user namespace: as root of the
// host the thread has all permissions in them.
func (r *Request) join(pid int) error {
	if r.flags() == 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, r.flags()); err != nil {
		return fmt.Errorf("enter the namespaces of process %d: %w", pid, err)
	}
	return nil
}

// asRoot calls f on this thread as the root of the namespace: the kernel lets only that user write
// the limits of IPC objects; it refuses even the host's root.
func (u *User) asRoot(f func() error) error {
	if err := setEUID(int(u.UIDs.HostID)); err != nil {
		return fmt.Errorf("become root of the user namespace: %w", err)
	}
	err := f()
	if back := setEUID(0); back != nil {
		// The thread ends after this, and the remaining steps need the host's root.
		return fmt.Errorf("become root of the host again: %w", back)
	}
	// A change of user sets the process's dumpable flag to fs.suid_dumpable, which may allow core
	// dumps.
	return errors.Join(err, coredump.Forbid())
}

// setEUID changes this thread only; the standard library's function changes all threads.
func setEUID(uid int) error {
	const unchanged = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, unchanged, uintptr(uid), unchanged); errno != 0 {
		return errno
	}
	return nil
}

// pingGroups is the only namespaced sysctl with groups in its value.
const pingGroups = "net/ipv4/ping_group_range"

// outside converts a sysctl's value for a write from the host. The kernel interprets ids in the
// writer's user namespace, but the pod's value has ids of the pod's namespace.
func (u *User) outside(key, value string) (string, error) {
	if u == nil || key != pingGroups {
		return value, nil
	}
	fields := strings.Fields(value)
	ids := make([]uint64, 0, len(fields))
	for _, f := range fields {
		id, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return value, nil // the kernel rejects it
		}
		ids = append(ids, id)
	}
	if len(ids) != 2 || ids[0] > ids[1] {
		return value, nil // "1 0" disables ping for all groups
	}
	if ids[1] >= uint64(u.GIDs.Size) {
		return "", fmt.Errorf("group %d is beyond the %d groups of the pod's user namespace", ids[1], u.GIDs.Size)
	}
	host := uint64(u.GIDs.HostID)
	return fmt.Sprintf("%d %d", host+ids[0], host+ids[1]), nil
}
