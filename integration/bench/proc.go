package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// userHz is the unit of times in /proc/<pid>/stat: 100 on every Linux that Go runs on.
const userHz = 100

// sleepBase distinguishes the command lines of workloads from all others.
const sleepBase = 86_400_000

func sleepFor(n int64) string { return strconv.FormatInt(sleepBase+n, 10) }

// workload reports whether a command line is that of a pod's container, and for how long it sleeps.
func workload(cmdline string) (seconds string, ok bool) {
	seconds, ok = strings.CutPrefix(strings.TrimSuffix(cmdline, "\x00"), "sleep\x00")
	if !ok {
		return "", false
	}
	n, err := strconv.ParseInt(seconds, 10, 64)
	return seconds, err == nil && n > sleepBase && n < sleepBase*2
}

// eachProcess calls f for every process that has a command line.
func eachProcess(f func(pid int, cmdline string)) error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(cmdline) == 0 {
			continue // exited, or a zombie
		}
		f(pid, string(cmdline))
	}
	return nil
}

// helpers returns the other processes of the peer than the daemon and the pods' workloads:
// supervisors, shims, sandbox processes.
func (p *peer) helpers() ([]int, error) {
	var pids []int
	err := eachProcess(func(pid int, cmdline string) {
		if pid == p.PID() || pid == os.Getpid() {
			return
		}
		if _, is := workload(cmdline); is {
			return
		}
		if strings.Contains(cmdline, p.Dir+"/") || strings.Contains(cmdline, p.Root+"/") || p.inPod(pid) {
			pids = append(pids, pid)
		}
	})
	return pids, err
}

// inPod reports whether a process is in the cgroup of one of the peer's pods.
func (p *peer) inPod(pid int) bool {
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && bytes.Contains(cgroups, []byte(":"+p.Cgroup+"/"))
}

// workloadPID returns the host's pid of the process of a pod's container.
func (p *pod) workloadPID() (int, error) {
	found := 0
	err := eachProcess(func(pid int, cmdline string) {
		if seconds, is := workload(cmdline); is && seconds == p.seconds {
			found = pid
		}
	})
	if err == nil && found == 0 {
		err = errors.New("the container's process is not visible on the host")
	}
	return found, err
}

// memory returns a field of smaps_rollup in kB.
func memory(pid int, field string) (float64, error) {
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	return parseRollup(string(rollup), field)
}

func parseRollup(rollup, field string) (float64, error) {
	for line := range strings.Lines(rollup) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
		}
	}
	return 0, fmt.Errorf("smaps_rollup has no %s", field)
}

// cpuSeconds is the CPU time of processes and of their exited children.
func cpuSeconds(pids []int) (float64, error) {
	var sum float64
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		seconds, err := parseCPU(string(stat))
		if err != nil {
			return 0, err
		}
		sum += seconds
	}
	return sum, nil
}

// parseCPU adds utime, stime, cutime and cstime: fields 14 to 17 in proc(5). Field 2 is in
// parentheses and may contain any character.
func parseCPU(stat string) (float64, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const utime, cstime = 14 - 3, 17 - 3
	if len(fields) <= cstime {
		return 0, fmt.Errorf("stat has only %d fields", len(fields)+2)
	}
	var ticks int64
	for _, field := range fields[utime : cstime+1] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return float64(ticks) / userHz, nil
}
