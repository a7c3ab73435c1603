package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// flushCalls are the system calls that wait for a disk.
var flushCalls = []string{"fsync", "fdatasync", "sync", "syncfs", "sync_file_range"}

// forkCalls are the system calls that start a process or a thread.
var forkCalls = []string{"clone", "clone3", "fork", "vfork"}

// counts counts flushCalls and forkCalls in three pod lives. strace slows everything down, so
// nothing else is measured with it.
func (tr *trial) counts() {
	strace, err := exec.LookPath("strace")
	if err != nil {
		testbed.Missing(tr, "strace is missing, so disk flushes and forks are not counted: apt-get install strace")
	}
	const lives = 3
	trace := filepath.Join(tr.TempDir(), "trace")
	stop := tr.attach(strace, trace)
	for range lives {
		tr.life()
	}
	stop()
	body, err := os.ReadFile(trace)
	testbed.Mustf(tr, err, "read the output of strace")
	tr.record("flushes", float64(countCalls(string(body), flushCalls))/lives)
	tr.record("forks", float64(countCalls(string(body), forkCalls))/lives)
}

// attach traces the daemon and its helpers, and everything they start, until
// stop is called.
func (tr *trial) attach(strace, trace string) (stop func()) {
	tr.Helper()
	helpers, err := tr.peer.helpers()
	testbed.Mustf(tr, err, "look for helpers")
	pids := append(slices.Clone(helpers), tr.peer.PID())
	arguments := []string{"-f", "-qq", "-o", trace, "-e", "signal=none", "-e", "trace=" + strings.Join(slices.Concat(flushCalls, forkCalls), ",")}
	for _, pid := range pids {
		arguments = append(arguments, "-p", strconv.Itoa(pid))
	}
	command := exec.Command(strace, arguments...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testbed.Mustf(tr, command.Start(), "start strace")
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		// strace detaches from all processes, and exits by the signal.
		_ = command.Process.Signal(syscall.SIGINT)
		_ = command.Wait()
	}
	tr.Cleanup(stop)
	for _, pid := range pids {
		testbed.Eventually(tr, 10*time.Second, func() error { return traced(pid) })
	}
	return stop
}

// traced returns nil if every thread of a process is being traced.
func traced(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		status, err := os.ReadFile(thread)
		if err == nil && strings.Contains(string(status), "\nTracerPid:\t0\n") {
			return fmt.Errorf("strace has not attached to process %d", pid)
		}
	}
	return nil
}

// countCalls counts the beginnings of calls. If another thread's line interrupts a call, the line
// with its rest has no opening parenthesis after the name.
func countCalls(trace string, names []string) int {
	begin := regexp.MustCompile(`(?m)^\d+ +(` + strings.Join(names, "|") + `)\(`)
	return len(begin.FindAllStringIndex(trace, -1))
}
