package shim

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/internal/test"
)

func TestPatience(t *testing.T) {
	l := limits{silence: time.Second, making: time.Minute}
	for method, want := range map[string]time.Duration{
		"Wait": 0, "Ping": 0, // no limit
		"Create": time.Minute, "Start": time.Minute, "Checkpoint": time.Minute,
		"Kill": time.Second, "Delete": time.Second, "State": time.Second, "Exec": time.Second, "Update": time.Second, "Stats": time.Second,
		"Pause": time.Second, "Resume": time.Second, "ResizePty": time.Second, "CloseIO": time.Second, "Connect": time.Second, "Shutdown": time.Second,
		"Info": time.Second, "ReopenLog": time.Second, "Attach": time.Second, "OpenStdio": time.Second, "FlushStdio": time.Second, "CloseStdio": time.Second,
	} {
		test.Equal(t, fmt.Sprint(method), l.patience(method, false), want)
		if want == l.making {
			want = math.MaxInt64
		}
		test.Equal(t, fmt.Sprintf("%s of a foreign shim", method), l.patience(method, true), want)
	}
}

// quick shortens the time after which a process counts as unresponsive.
func quick(m *Manager) {
	m.Supervisors.limits.quiet, m.Supervisors.limits.silence, m.Supervisors.limits.making = 20*time.Millisecond, time.Second, time.Second
	m.ForeignShims.limits = m.Supervisors.limits
}

// Calls to a stopped supervisor fail after a while. They used to wait as long as their
// callers, and forever for callers without a limit.
func TestCallsOfUnresponsiveSupervisorEnd(t *testing.T) {
	a, _ := builds(t)
	m := manager(t, stateDir(t), a)
	quick(m)
	pid := serving(t, m, "key")
	c := test.Value(m.Live(t.Context(), "key"))(t)
	if found := m.Unresponsive(t.Context()); len(found) > 0 {
		t.Errorf("before: %v", found)
	}
	stopProcess(t, pid)
	waiting := make(chan error, 1)
	waits, giveUp := context.WithCancel(t.Context())
	go func() {
		_, err := c.Task.Wait(waits, &taskapi.WaitRequest{ID: "id"})
		waiting <- err
	}()
	calls := map[string]func() error{
		"State": func() error { _, err := c.Task.State(t.Context(), &taskapi.StateRequest{ID: "id"}); return err },
		"Kill":  func() error { _, err := c.Task.Kill(t.Context(), &taskapi.KillRequest{ID: "id"}); return err },
		"Start": func() error { _, err := c.Task.Start(t.Context(), &taskapi.StartRequest{ID: "id"}); return err },
	}
	for name, call := range calls {
		err := call()
		if !IsUnresponsive(err) || !errdefs.IsUnavailable(err) || Lost(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	found := m.Unresponsive(t.Context())
	if len(found) != 1 || !strings.Contains(found[0], fmt.Sprintf("supervisor key (process %d) is unresponsive since", pid)) {
		t.Errorf("the unresponsive supervisors are %v", found)
	}
	select {
	case err := <-waiting:
		t.Errorf("Wait ended with %v", err)
	default:
	}
	giveUp()
	test.Fails(t, <-waiting, "Wait for an unknown task succeeded")

	test.Must(t, syscall.Kill(pid, syscall.SIGCONT))
	test.Eventually(t, "the supervisor answers again", func() bool { return len(m.Unresponsive(t.Context())) == 0 })
	if err := calls["State"](); err == nil || IsUnresponsive(err) {
		t.Errorf("State of an unknown task: %v", err)
	}
}

// Concurrent calls replace an unresponsive supervisor only once.
func TestReplaceUnresponsive(t *testing.T) {
	a, _ := builds(t)
	m := manager(t, stateDir(t), a)
	quick(m)
	m.Hold("key")
	pid := serving(t, m, "key")
	c := test.Value(m.Live(t.Context(), "key"))(t)
	stopProcess(t, pid)
	if _, err := c.Task.State(t.Context(), &taskapi.StateRequest{ID: "id"}); !IsUnresponsive(err) {
		t.Fatalf("before: %v", err)
	}
	var all sync.WaitGroup
	var errs [8]error
	for i := range errs {
		all.Go(func() {
			if errs[i] = m.Replace(t.Context(), "key"); errs[i] == nil {
				_, errs[i] = m.Supervisor(t.Context(), "key")
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		test.Check(t, err)
	}
	successor := serving(t, m, "key")
	if successor == pid {
		t.Error("the supervisor was not killed")
	}
	again := test.Value(m.Live(t.Context(), "key"))(t)
	if next := serving(t, m, "key"); next != successor {
		t.Errorf("successor %d was killed too", successor)
	}
	if found := m.Unresponsive(t.Context()); len(found) > 0 || again.Unresponsive() != nil {
		t.Errorf("the successor is unresponsive: %v", found)
	}
}

// A stopped process uses up the time of the check, but other processes are not reported.
func TestOnlyWhatIsStoppedIsNamed(t *testing.T) {
	a, _ := builds(t)
	m := manager(t, stateDir(t), a)
	pids := map[string]int{}
	for _, key := range []string{"a", "b", "c", "d"} {
		m.Hold(key)
		pids[key] = serving(t, m, key)
	}
	stopProcess(t, pids["a"])
	for range 3 {
		found := m.Unresponsive(t.Context())
		if len(found) != 1 || !strings.Contains(found[0], fmt.Sprintf("(process %d)", pids["a"])) {
			t.Errorf("process %d is stopped, but the unresponsive ones are %v", pids["a"], found)
		}
	}
}

// If the daemon itself stalls, as on a node that swaps, its supervisor counts as unresponsive
// only if it does not answer afterwards.
func TestStallOfTheDaemon(t *testing.T) {
	const inChild = "BERTH_TEST_STALL"
	if os.Getenv(inChild) != "" {
		stalls(t)
		return
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestStallOfTheDaemon$", "-test.v")
	command.Env = append(os.Environ(), inChild+"=1")
	out := test.Value(command.StdoutPipe())(t)
	test.Must(t, command.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		t.Log(lines.Text())
		var supervisor int
		if n, _ := fmt.Sscanf(lines.Text(), "pinged %d", &supervisor); n == 0 {
			continue
		}
		signal := func(pid int, s syscall.Signal) {
			test.Check(t, syscall.Kill(pid, s))
		}
		signal(command.Process.Pid, syscall.SIGSTOP)
		signal(supervisor, syscall.SIGCONT)
		time.Sleep(2 * time.Second) // longer than the time that quick sets
		signal(command.Process.Pid, syscall.SIGCONT)
	}
	test.Check(t, command.Wait())
}

// stalls is the daemon, which runs in the child process.
func stalls(t *testing.T) {
	t.Helper()
	a, _ := builds(t)
	m := manager(t, stateDir(t), a)
	quick(m)
	m.Hold("key")
	pid := serving(t, m, "key")
	c := test.Value(m.Live(t.Context(), "key"))(t)
	stopProcess(t, pid)
	c.ping()
	test.Must(t, test.Err(fmt.Fprintf(os.Stdout, "pinged %d\n", pid)))
	if _, err := c.Task.State(t.Context(), &taskapi.StateRequest{ID: "id"}); IsUnresponsive(err) {
		t.Error(err)
	}
	test.Check(t, m.Replace(t.Context(), "key"))
	if now := serving(t, m, "key"); now != pid {
		t.Errorf("supervisor %d was killed", pid)
	}
}

// A call to a responsive shim is waited for, however long the shim's runtime takes.
func TestSlowCallIsWaitedFor(t *testing.T) {
	dir := stateDir(t)
	m := manager(t, dir, "/none")
	quick(m)
	m.ForeignShims.limits.silence = 2 * time.Second
	server := test.Value(ttrpc.NewServer())(t)
	defer func() { _ = server.Close() }()
	release := make(chan struct{})
	asked := make(chan struct{}, 1)
	server.Register("containerd.task.v3.Task", map[string]ttrpc.Method{
		"Kill": func(context.Context, func(any) error) (any, error) {
			asked <- struct{}{}
			<-release
			return &emptypb.Empty{}, nil
		},
	})
	socket := filepath.Join(dir, "slow.sock")
	l := test.Value(net.Listen("unix", socket))(t)
	go func() { _ = server.Serve(t.Context(), l) }()
	c := test.Value(m.Foreign(t.Context(), Endpoint{Address: "unix://" + socket, Protocol: "ttrpc", Version: 3}))(t)
	killed := make(chan error, 1)
	go func() {
		_, err := c.Task.Kill(t.Context(), &taskapi.KillRequest{ID: "id"})
		killed <- err
	}()
	<-asked
	select {
	case err := <-killed:
		t.Errorf("the call ended with %v", err)
	case <-time.After(2 * m.ForeignShims.limits.silence):
	}
	close(release)
	test.Check(t, <-killed)
}
