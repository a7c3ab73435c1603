// Package procfs reads the kernel's information about processes, in /proc and in cgroups.
//
// It has no state, so everything may be called concurrently. Errors are the kernel's: for a process
// that has exited, fs.ErrNotExist or ESRCH. See proc(5) and cgroups(7).
package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Path returns a file in the directory of a process.
func Path(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// BootID returns an id that changes with each boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

// Processes returns the ids of all processes of the host.
func Processes() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Children returns the ids of a process's children; none if the kernel does not list them.
func Children(pid int) []int {
	lists, _ := filepath.Glob(Path(pid, "task/*/children"))
	var all []int
	for _, list := range lists {
		b, _ := os.ReadFile(list) // the thread may have ended
		for _, field := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil {
				all = append(all, pid)
			}
		}
	}
	return all
}

// Stat contains the fields of /proc/<pid>/stat that berth uses.
type Stat struct {
	// State is a letter: Z and X mean exited.
	State                  byte
	Parent, Group, Session int
	// Flags are the kernel's, PF_ in its sources.
	Flags uint64
	// Started is in kernel ticks since the boot. Together with the PID it identifies a process
	// forever.
	Started uint64
	// ExitCode is a status of waitpid(2).
	ExitCode int32
}

// Ended reports whether the process has exited; it may still have to be reaped.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' || s.State == 'x' }

// exiting is the flag of a process that is exiting.
const exiting = 0x4

// Exiting reports whether the process is exiting.
func (s Stat) Exiting() bool { return s.Flags&exiting != 0 }

// StatOf reads the Stat of a process.
func StatOf(pid int) (Stat, error) {
	text, err := os.ReadFile(Path(pid, "stat"))
	if err != nil {
		return Stat{}, err
	}
	s, err := parseStat(text)
	if err != nil {
		return Stat{}, fmt.Errorf("%s: %w", Path(pid, "stat"), err)
	}
	return s, nil
}

// parseStat reads the numbered fields of proc_pid_stat(5). The second field is a name of any
// characters in parentheses; the last parenthesis of the text ends it.
func parseStat(text []byte) (Stat, error) {
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const first, last = 3, 52 // numbers of the fields that are read
	if len(fields) <= last-first {
		return Stat{}, fmt.Errorf("%d fields are missing", last-first+1-len(fields))
	}
	var bad error
	number := func(field int) int64 {
		n, err := strconv.ParseInt(string(fields[field-first]), 10, 64)
		bad = errors.Join(bad, err)
		return n
	}
	return Stat{
		State:    fields[0][0],
		Parent:   int(number(4)),
		Group:    int(number(5)),
		Session:  int(number(6)),
		Flags:    uint64(number(9)),  //nolint:gosec // 32 bits
		Started:  uint64(number(22)), //nolint:gosec // it is after the boot
		ExitCode: int32(number(52)),  //nolint:gosec // a status of waitpid(2)
	}, bad
}

// CgroupsOf returns the paths of a process's cgroups by controller: "" is version 2, and named
// hierarchies are like name=systemd.
func CgroupsOf(pid int) (map[string]string, error) {
	text, err := os.ReadFile(Path(pid, "cgroup"))
	if err != nil {
		return nil, err
	}
	return ParseCgroups(text), nil
}

// ParseCgroups parses /proc/<pid>/cgroup and skips invalid lines.
func ParseCgroups(text []byte) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, where, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		where = strings.TrimSuffix(where, " (deleted)")
		for c := range strings.SplitSeq(controllers, ",") {
			all[c] = where
		}
	}
	return all
}

// Members returns the ids of the processes in a cgroup, without those in its child cgroups.
func Members(dir string) ([]int, error) {
	file := filepath.Join(dir, "cgroup.procs")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pids, err := ParseMembers(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return pids, nil
}

// ParseMembers parses the content of a file cgroup.procs.
func ParseMembers(text []byte) ([]int, error) {
	var pids []int
	for word := range bytes.FieldsSeq(text) {
		pid, err := strconv.Atoi(string(word))
		if err != nil {
			return nil, err
		}
		// 0 is a process of another PID namespace, which has no id here.
		if pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// OOMScore is this process's oom_score_adj, from -1000, at which the kernel never kills it for lack
// of memory, to 1000.
func OOMScore() (int, error) {
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, fmt.Errorf("read oom_score_adj: %w", err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read oom_score_adj: %w", err)
	}
	return score, nil
}

// SetOOMScore gives a process an oom_score_adj.
func SetOOMScore(pid, score int) error {
	if err := os.WriteFile(Path(pid, "oom_score_adj"), []byte(strconv.Itoa(score)), 0); err != nil {
		return fmt.Errorf("set oom_score_adj of process %d: %w", pid, err)
	}
	return nil
}
