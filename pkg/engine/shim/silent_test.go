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

// stopProcess stops a process, and returns when no thread of it runs any more: one
// may go on for a moment after the signal was sent.
func stopProcess(t *testing.T, pid int) {
	t.Helper()
	test.Must(t, syscall.Kill(pid, syscall.SIGSTOP))
	test.Eventually(t, "all of it stands still", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(threads) == 0 {
			t.Fatalf("the threads of %d: %v", pid, err)
		}
		for _, name := range threads {
			stat, err := os.ReadFile(name)
			if err != nil {
				return false
			}
			// The name of the program may have anything in it; the state follows it.
			if _, state, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " "); !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	})
}

// Calls of a process that reads nothing end, however many they are, and the next
// ones have a connection of their own.
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
		t.Fatal("calls are stuck in a connection that nobody reads")
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

// A supervisor that does not leave when it is asked to is asked again, and whoever
// wants it meanwhile waits no longer than it wants to.
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
	test.Eventually(t, "it is asked to leave", func() bool { return len(s.busy) > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	test.ErrorIs(t, test.Err(m.Supervisor(ctx, "key")), context.DeadlineExceeded, "whoever waits for one that is asked to leave")
	test.Eventually(t, "it is given up", func() bool { return len(s.busy) == 0 })
	test.Must(t, syscall.Kill(pid, syscall.SIGCONT))
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody asked again")
	}
	if _, err := os.Stat(m.SupervisorDir("key")); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
}

// That its connection broke does not say that a supervisor is gone.
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
	test.Eventually(t, "it is asked to leave", func() bool { return len(s.busy) > 0 })
	test.Must(t, c.conn.Close())
	test.Fails(t, <-ended, "a stopped supervisor is said to have left")
	test.Checkf(t, test.Err(os.Stat(filepath.Join(m.SupervisorDir("key"), socketName))), "the directory of a live supervisor was taken away")
}

// A supervisor that had something to do when it was told to leave is reached again for the next
// time. Once it was said not to listen on its socket, every minute, while its pods answered.
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
	test.Fails(t, m.Sweep(t.Context(), func(string) bool { return false }), "a supervisor that reads the output of a container left")
	test.Must(t, test.Err(c.Supervisor.CloseStdio(t.Context(), &supervisorapi.CloseStdioRequest{Id: "id"})))
	m.Hold("key")
	m.Release("key")
	select {
	case <-left:
	case <-time.After(20 * time.Second):
		t.Fatal("it is not reached any more")
	}
	if _, err := os.Stat(m.SupervisorDir("key")); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
}
