package shim

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// built returns the program berth-shim.
var built = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "berth-shim-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "berth-shim")
	cmd := exec.Command("go", "build", "-tags", "no_grpc", "-ldflags", "-s -w", "-o", path, "github.com/berth-cri/berth/cmd/berth-shim")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(path)
})

// builds returns the paths of two different builds.
func builds(t *testing.T) (a, b string) {
	t.Helper()
	program := test.Value(built())(t)
	dir := t.TempDir()
	a, b = filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, path := range []string{a, b} {
		// The kernel ignores bytes after the program's last section.
		if err := os.WriteFile(path, append(slices.Clone(program), path...), 0o755); err != nil { //nolint:gosec // it is a program
			t.Fatal(err)
		}
	}
	return a, b
}

// manager returns the Manager of a new daemon.
func manager(t *testing.T, state, program string) *Manager {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("BERTH_TEST_REQUIRE") != "" {
			t.Fatal("a supervisor needs root")
		}
		t.Skip("a supervisor needs root")
	}
	m := test.Value(New(Config{State: state, Supervisor: program, Events: filepath.Join(state, "events.sock"), API: filepath.Join(state, "containerd.sock"), Log: log.L}))(t)
	t.Cleanup(m.Close)
	return m
}

// stateDir is short, because the paths of sockets must be.
func stateDir(t *testing.T) string {
	t.Helper()
	dir := test.Value(os.MkdirTemp("", "bs-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serving returns the pid of the supervisor with that key.
func serving(t *testing.T, m *Manager, key string) int {
	t.Helper()
	var info *supervisorapi.InfoResponse
	test.Retry(t, func() error {
		c, err := m.Supervisor(t.Context(), key)
		if err == nil {
			info, err = c.Supervisor.Info(t.Context(), &supervisorapi.InfoRequest{})
		}
		// A connection breaks only a moment after its process has exited.
		if err != nil && !Lost(err) {
			t.Fatalf("supervisor %s: %v", key, err)
		}
		return err
	})
	pid := int(info.GetPid())
	endWithTest(t, pid)
	return pid
}

// endWithTest kills a process when the test ends, but no other process that has its PID by then.
func endWithTest(t *testing.T, pid int) {
	t.Helper()
	fd := test.Value(unix.PidfdOpen(pid, 0))(t)
	t.Cleanup(func() {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		unix.Close(fd)
	})
}

func runs(t *testing.T, pid int, program string) {
	t.Helper()
	test.Equal(t, fmt.Sprintf("process %d runs", pid), test.Value(os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)))(t), program)
}

func kill(t *testing.T, pid int) {
	t.Helper()
	test.Must(t, syscall.Kill(pid, syscall.SIGKILL))
}

func TestSuccessorIsTheSameProgram(t *testing.T) {
	a, b := builds(t)
	state := stateDir(t)
	then := manager(t, state, a)
	old := serving(t, then, "old")
	runs(t, old, a)
	then.Close()

	// The daemon was upgraded.
	now := manager(t, state, b)
	if pid := serving(t, now, "old"); pid != old {
		t.Fatalf("supervisor %d was not found again, but %d", old, pid)
	}
	kill(t, old)
	next := serving(t, now, "old")
	runs(t, next, a)
	runs(t, serving(t, now, "new"), b)
	if programs, err := Programs(state); err != nil || !slices.Equal(slices.Sorted(slices.Values(programs)), []string{a, b}) {
		t.Errorf("the programs in use are %v, %v", programs, err)
	}

	// If the kept copy is removed, the pods still get a supervisor.
	test.Must(t, os.Remove(a))
	kill(t, next)
	runs(t, serving(t, now, "old"), b)
	test.EqualLists(t, "the programs in use", test.Value(Programs(state))(t), []string{b, b})
}

// A daemon that is killed while it creates a supervisor's directory leaves it without a program.
func TestDirectoryWithoutAProgram(t *testing.T) {
	state := stateDir(t)
	m := manager(t, state, "/none")
	test.Must(t, os.Mkdir(m.SupervisorDir("half"), 0o700))
	if programs, err := Programs(state); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, %v", programs, err)
	}
}

// A supervisor that runs but cannot be reached keeps its directory.
func TestLiveSupervisorIsNotReplaced(t *testing.T) {
	a, _ := builds(t)
	state := stateDir(t)
	first := manager(t, state, a)
	pid := serving(t, first, "key")
	first.Close()
	socket := filepath.Join(first.SupervisorDir("key"), socketName)
	away := socket + ".away"
	test.Must(t, os.Rename(socket, away))
	second := manager(t, state, a)
	_, err := second.Supervisor(t.Context(), "key")
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), fmt.Sprint("process ", pid, " ")) {
		t.Errorf("got %v, want that process %d is in the way", err, pid)
	}
	if err := second.Sweep(t.Context(), func(string) bool { return false }); err == nil || !strings.Contains(err.Error(), fmt.Sprint("process ", pid, " ")) {
		t.Errorf("sweep: %v, want that process %d is in the way", err, pid)
	}
	test.Mustf(t, test.Err(os.Stat(away)), "the directory of a live supervisor was removed")

	// The supervisor listens again while third waits for it.
	third := manager(t, state, a)
	back := time.AfterFunc(100*time.Millisecond, func() { _ = os.Rename(away, socket) })
	defer back.Stop()
	if now := serving(t, third, "key"); now != pid {
		t.Errorf("process %d was started beside %d", now, pid)
	}
	kill(t, pid)
	if now := serving(t, third, "key"); now == pid {
		t.Errorf("dead process %d answers", pid)
	}
}

func TestWhoDoesNotAnswer(t *testing.T) {
	a, _ := builds(t)
	m := manager(t, stateDir(t), a)
	if _, err := m.Live(t.Context(), "key"); !noListener(err) {
		t.Errorf("before the start: %v", err)
	}
	pid := serving(t, m, "key")
	c := test.Value(m.Live(t.Context(), "key"))(t)
	answers := func(d time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		return c.Answers(ctx)
	}
	if !answers(20 * time.Second) {
		t.Error("a live supervisor does not answer")
	}
	stopProcess(t, pid)
	if answers(300 * time.Millisecond) {
		t.Error("a stopped supervisor answers")
	}
	test.Checkf(t, m.Sweep(t.Context(), func(key string) bool { return key == "key" }), "a sweep that keeps the stopped supervisor")
	kill(t, pid)
	if !answers(20 * time.Second) {
		t.Error("Answers waits for a dead supervisor")
	}
}
