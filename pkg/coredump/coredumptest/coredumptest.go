// Package coredumptest reports whether processes leave core dumps.
package coredumptest

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// T is the part of *testing.T in use: only tests may import package testing.
type T interface {
	Helper()
	TempDir() string
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
}

// Environment makes a Go program exit by the signal of its crash, as a C program does.
const Environment = "GOTRACEBACK=crash"

// Need skips the test if this system writes no core dumps, or fails it if BERTH_TEST_REQUIRE is
// set.
func Need(t T) {
	t.Helper()
	control := exec.Command("sleep", "3600")
	control.Dir = t.TempDir()
	if err := control.Start(); err != nil {
		t.Fatal(err)
	}
	if Crashed(t, control) {
		return
	}
	const reason = "this system writes no core dumps; see /proc/sys/kernel/core_pattern and the hard RLIMIT_CORE"
	if os.Getenv("BERTH_TEST_REQUIRE") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// Crashed raises the core limit of a running process to its maximum, crashes the process and
// reports whether it left a core dump.
func Crashed(t T, c *exec.Cmd) bool {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Prlimit(c.Process.Pid, unix.RLIMIT_CORE, nil, &limit); err != nil {
		t.Fatal(err)
	}
	limit.Cur = limit.Max
	if err := unix.Prlimit(c.Process.Pid, unix.RLIMIT_CORE, &limit, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Minute, func() { _ = c.Process.Kill() })
	defer timer.Stop()
	_ = c.Wait()
	status, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() == syscall.SIGKILL {
		t.Fatalf("the process did not crash: %v", c.ProcessState)
	}
	return status.CoreDump()
}
