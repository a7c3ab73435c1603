// Package process measures processes of this host and finds their descendants, by /proc.
//
// The error for a process that has exited is errdefs.ErrNotFound, even if its id was reused.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// Process is a process of a snapshot.
type Process struct {
	PID, Parent int
	// Started is in kernel ticks since the boot. Together with the PID it identifies a process
	// forever.
	Started uint64
}

// ticks is the number of kernel ticks per second in /proc.
const ticks = 100

// All is a snapshot of the host's processes.
type All struct {
	byPID    map[int]Process
	children map[int][]int
	now      uint64 // in ticks
}

// Look lists the processes of the host.
func Look() (*All, error) {
	pids, err := procfs.Processes()
	if err != nil {
		return nil, fmt.Errorf("processes: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return nil, fmt.Errorf("processes: %w", err)
	}
	a := &All{byPID: make(map[int]Process, len(pids)), children: map[int][]int{}, now: uint64(now.Nano()) / uint64(time.Second/ticks)} //nolint:gosec // it is after the boot
	for _, pid := range pids {
		p, err := read(pid)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		a.byPID[pid] = p
		a.children[p.Parent] = append(a.children[p.Parent], pid)
	}
	return a, nil
}

// Find returns the process with that id.
func (a *All) Find(pid int) (Process, bool) {
	p, there := a.byPID[pid]
	return p, there
}

// Age is the time since p started.
func (a *All) Age(p Process) time.Duration {
	return time.Duration(a.now-min(p.Started, a.now)) * (time.Second / ticks) //nolint:gosec // far from the end of time
}

// Below returns the process with that id and its descendants. It omits processes for which stop
// returns true, with their descendants.
func (a *All) Below(pid int, stop func(Process) bool) []Process {
	var all []Process
	seen := map[int]bool{} // ids may be reused during the listing
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		p, there := a.byPID[next[0]]
		if !there || seen[p.PID] || stop(p) {
			continue
		}
		seen[p.PID] = true
		all, next = append(all, p), append(next, a.children[p.PID]...)
	}
	return all
}

// gone converts the error of a process that has exited, and wraps any other.
func gone(pid int, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("process %d has exited: %w", pid, errdefs.ErrNotFound)
	}
	return fmt.Errorf("process %d: %w", pid, err)
}

func read(pid int) (Process, error) {
	stat, err := procfs.StatOf(pid)
	if err != nil {
		return Process{}, gone(pid, err)
	}
	return Process{PID: pid, Parent: stat.Parent, Started: stat.Started}, nil
}

// same returns nil if p's id still belongs to p.
func (p Process) same() error {
	now, err := read(p.PID)
	if err == nil && now.Started != p.Started {
		err = gone(p.PID, fs.ErrNotExist)
	}
	return err
}

// Memory is p's share of the host's memory, swap included, in bytes. A page of several processes is
// divided among them (PSS).
func (p Process) Memory() (uint64, error) {
	text, err := os.ReadFile(procfs.Path(p.PID, "smaps_rollup"))
	if err != nil {
		return 0, gone(p.PID, err)
	}
	sum, ok := parseRollup(text)
	if err := p.same(); err != nil {
		return 0, err
	}
	if !ok {
		return 0, gone(p.PID, fs.ErrNotExist) // it is exiting, and has no memory any more
	}
	return sum, nil
}

// parseRollup adds Pss and SwapPss, which are in KiB.
func parseRollup(text []byte) (sum uint64, ok bool) {
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		if len(words) != 3 {
			continue
		}
		key := string(words[0])
		if key != "Pss:" && key != "SwapPss:" {
			continue
		}
		n, err := strconv.ParseUint(string(words[1]), 10, 54)
		if err != nil {
			return 0, false
		}
		sum, ok = sum+n<<10, true
	}
	return sum, ok
}

// CPU is the CPU time of p, including its exited threads, without the processes that it started.
func (p Process) CPU() (time.Duration, error) {
	// The kernel's id of another process's clock, see clock_getcpuclockid(3).
	const sched = 2
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^p.PID<<3|sched), &used); err != nil { //nolint:gosec // a pid has 22 bits
		if errors.Is(err, unix.EINVAL) { // the process does not exist
			err = fs.ErrNotExist
		}
		return 0, gone(p.PID, err)
	}
	return time.Duration(used.Nano()), p.same()
}

// Names reports whether an argument of p contains one of the words. It is false once p has exited.
func (p Process) Names(words ...string) bool {
	text, _ := os.ReadFile(procfs.Path(p.PID, "cmdline"))
	return slices.ContainsFunc(words, func(w string) bool { return bytes.Contains(text, []byte(w)) })
}

// Dying reports whether a process has exited, is exiting, or has a pending SIGKILL. Processes in
// its PID namespace or its cgroup may exit before it does.
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

// killPending reports whether SIGKILL is pending in a process's status; see proc_pid_status(5).
// Pure.
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
