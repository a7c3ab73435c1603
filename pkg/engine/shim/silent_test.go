package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/berth-cri/berth/internal/test"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// stopProcess stops a process, and returns when all its threads are stopped: a thread
// may continue for a moment after the signal was sent.
func stopProcess(t *testing.T, pid int) {
	t.Helper()
	test.Must(t, syscall.Kill(pid, syscall.SIGSTOP))
	test.Eventually(t, "all threads are stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("the threads of %d: %v", pid, err)
		}
		for _, name := range threads {
			stat, err := os.ReadFile(name)
			if err != nil {
				return false
			}
			// The state follows the name of the program, which may have any characters.
			if _, state, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " "); !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	})
}

// Calls to a process that reads nothing end, however many they are, and the next call
// gets a new connection.
func TestNoCallWaitsForAReader(t *testing.T) {
	dir := stateDir(t)
	m := manager(t, dir, "/none")
	m.ForeignShims.limits.write = 300 * time.Millisecond
	socket := filepath.Join(dir, "deaf.sock")
	l := test.Value(net.Listen("unix", socket))(t)
	defer l.Close()
	ep := Endpoint{Address: "unix://" + socket, Protocol: "ttrpc", Version: 3}
	c := test.Value(m.Foreign(t.Context(), ep))(t)
	const calls = 64
	var (
		all  sync.WaitGroup
		errs [calls]error
		long = strings.Repeat("x", 64<<10)
	)
	for i := range errs {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, errs[i] = c.Task.Exec(ctx, &taskapi.ExecProcessRequest{ID: "id", Stdin: long})
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("calls are stuck in a connection that is not read")
	}
	lost := 0
	for _, err := range errs {
		switch {
		case Lost(err):
			lost++
		case !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("got %v", err)
		}
	}
	if lost == 0 {
		t.Error("the buffer was never full, this test shows nothing")
	}
	test.Eventually(t, "the connection is given up", c.gone)
	if next, err := m.Foreign(t.Context(), ep); err != nil || next == c {
		t.Errorf("the next call has the same connection, or none: %v", err)
	}
}

// A supervisor that does not exit when it is asked to is asked again. A caller that needs
// the supervisor waits no longer than its own context.
func TestIdleSupervisorIsAskedAgain(t *testing.T) {
	a, _ := builds(t)
	m := manager(t, stateDir(t), a)
	left := make(chan struct{}, 1)
	m.Supervisors.config.Left = func() { left <- struct{}{} }
	m.Supervisors.limits.idle, m.Supervisors.limits.leave = 10*time.Millisecond, time.Second
	m.Hold("key")
	pid := serving(t, m, "key")
	stopProcess(t, pid)
	m.Release("key")
	m.Supervisors.mu.Lock()
	s := m.lookup("key")
	m.Supervisors.mu.Unlock()
	test.Eventually(t, "the supervisor is asked to exit", func() bool { return len(s.busy) > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	test.ErrorIs(t, test.Err(m.Supervisor(ctx, "key")), context.DeadlineExceeded, "a caller that needs a supervisor that is asked to exit")
	test.Eventually(t, "the request to exit is given up", func() bool { return len(s.busy) == 0 })
	test.Must(t, syscall.Kill(pid, syscall.SIGCONT))
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Fatal("the supervisor was not asked again")
	}
	if _, err := os.Stat(m.SupervisorDir("key")); !os.IsNotExist(err) {
		t.Errorf("the supervisor's directory: %v, want that it does not exist", err)
	}
}

// No other pod can use the supervisor of a removed pod, so it does not wait for one.
func TestSupervisorOfOnePodExitsWithIt(t *testing.T) {
	a, _ := builds(t)
	m := manager(t, stateDir(t), a)
	left := make(chan struct{}, 2)
	m.Supervisors.config.Left = func() { left <- struct{}{} }
	m.Supervisors.limits.idle = time.Hour
	own := OnePod + "0123456789abcdef"
	for _, key := range []string{"handler", own} {
		m.Hold(key)
		serving(t, m, key)
		m.Release(key)
	}
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Fatal("the supervisor was not asked to exit")
	}
	if _, err := os.Stat(m.SupervisorDir(own)); !os.IsNotExist(err) {
		t.Errorf("the supervisor's directory: %v, want that it does not exist", err)
	}
	test.Checkf(t, test.Err(os.Stat(m.SupervisorDir("handler"))), "the handler's supervisor did not wait for the next pod")
}

// A broken connection does not mean that the supervisor is gone.
func TestLostConnectionIsNoEnd(t *testing.T) {
	a, _ := builds(t)
	m := manager(t, stateDir(t), a)
	pid := serving(t, m, "key")
	stopProcess(t, pid)
	c := test.Value(m.Live(t.Context(), "key"))(t)
	ended := make(chan error)
	go func() { ended <- m.Sweep(t.Context(), func(string) bool { return false }) }()
	m.Supervisors.mu.Lock()
	s := m.lookup("key")
	m.Supervisors.mu.Unlock()
	test.Eventually(t, "the supervisor is asked to exit", func() bool { return len(s.busy) > 0 })
	test.Must(t, c.conn.Close())
	test.Fails(t, <-ended, "Sweep succeeded although the supervisor is stopped")
	test.Checkf(t, test.Err(os.Stat(filepath.Join(m.SupervisorDir("key"), socketName))), "the directory of a live supervisor was removed")
}

// A supervisor that was busy when it was asked to exit can be asked again. It used to be
// reported as not listening on its socket, every minute, although its pods worked.
func TestSupervisorIsReachedAgainToLeave(t *testing.T) {
	a, _ := builds(t)
	m := manager(t, stateDir(t), a)
	left := make(chan struct{}, 1)
	m.Supervisors.config.Left = func() { left <- struct{}{} }
	m.Supervisors.limits.idle = 10 * time.Millisecond
	serving(t, m, "key")
	c := test.Value(m.Live(t.Context(), "key"))(t)
	pipe := filepath.Join(t.TempDir(), "out")
	test.Must(t, syscall.Mkfifo(pipe, 0o600))
	test.Must(t, test.Err(c.Supervisor.OpenStdio(t.Context(), &supervisorapi.OpenStdioRequest{Id: "id", Stdout: pipe})))
	test.Fails(t, m.Sweep(t.Context(), func(string) bool { return false }), "a supervisor exited although it reads the output of a container")
	test.Must(t, test.Err(c.Supervisor.CloseStdio(t.Context(), &supervisorapi.CloseStdioRequest{Id: "id"})))
	m.Hold("key")
	m.Release("key")
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Fatal("the supervisor was not asked again")
	}
	if _, err := os.Stat(m.SupervisorDir("key")); !os.IsNotExist(err) {
		t.Errorf("the supervisor's directory: %v, want that it does not exist", err)
	}
}
