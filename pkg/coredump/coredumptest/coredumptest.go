// Package coredumptest tells whether processes leave cores.
package coredumptest

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// T is a test: *testing.T, which no package may import that is not a test.
type T interface {
	Helper()
	TempDir() string
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
}

// Environment has a program in Go end by the signal of its crash, as one in C does.
const Environment = "GOTRACEBACK=crash"

// Need skips the test where no core is written of any process, or fails it if
// BERTH_TEST_REQUIRE is set.
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
	const reason = "no cores are written here: /proc/sys/kernel/core_pattern, or the hard RLIMIT_CORE"
	if os.Getenv("BERTH_TEST_REQUIRE") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// Crashed crashes a process that was started, with the right to a core of any size, and
// tells whether it left one.
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
		t.Fatalf("it did not crash: %v", c.ProcessState)
	}
	return status.CoreDump()
}
