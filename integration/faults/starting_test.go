package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// slowStart is a runtime that waits, in the subcommand that starts a container, until
// the test creates the file go. With the file fail the start then fails.
type slowStart struct {
	*scripted
	verb string
	dir  string
}

func newSlowStart(t *testing.T, verb string) *slowStart {
	t.Helper()
	return &slowStart{newScripted(t), verb, t.TempDir()}
}

// hold makes the next starts wait. The wait is a loop in the script itself, so that no process is
// left if the script is killed.
func (s *slowStart) hold(t *testing.T) {
	t.Helper()
	for _, name := range []string{"begun", "go", "fail"} {
		_ = os.Remove(filepath.Join(s.dir, name))
	}
	s.on(t, s.verb, fmt.Sprintf("touch %[1]q/begun; until [ -e %[1]q/go ]; do sleep 0.05; done; [ ! -e %[1]q/fail ] || exit 1", s.dir))
}

// begin begins the start of c, and returns when the runtime waits in it. The channel
// receives the result of the call.
func (s *slowStart) begin(t *testing.T, b *bed, c *testbed.Container) <-chan error {
	t.Helper()
	s.hold(t)
	started := make(chan error, 1)
	go func() {
		_, err := b.Client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ID})
		started <- err
	}()
	s.begun(t)
	return started
}

func (s *slowStart) begun(t *testing.T) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error { _, err := os.Stat(filepath.Join(s.dir, "begun")); return err })
}

// events subscribes to events, and returns a function that waits for an event of a
// container. To be sure of the subscription, it creates containers until it receives an
// event.
func (b *bed) events(t *testing.T, pod *testbed.Pod) func(container string, want runtimeapi.ContainerEventType) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := b.Client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	testbed.Must(t, err)
	heard := make(chan *runtimeapi.ContainerEventResponse, 64)
	go func() {
		defer close(heard)
		for {
			event, err := stream.Recv()
			if err != nil {
				return
			}
			heard <- event
		}
	}()
	for n, subscribed := 0, false; !subscribed; n++ {
		pod.CreateContainer(t, fmt.Sprint("heard-", n), testbed.PodSpec{Image: b.Image, Command: []string{"true"}})
		select {
		case _, subscribed = <-heard:
			if !subscribed {
				t.Fatal("the stream of events ended")
			}
		case <-time.After(time.Second):
		}
	}
	return func(container string, want runtimeapi.ContainerEventType) {
		t.Helper()
		for event := range heard {
			if event.GetContainerId() == container && event.GetContainerEventType() == want {
				return
			}
		}
		t.Errorf("received no %s of container %s", want, container)
	}
}

// TestDaemonEndsDuringStart has the daemon, its supervisor or their connection end
// while a runtime starts a container. The start continues, and the next daemon must
// learn its result: if a running container were listed as CREATED, the kubelet would
// run a second one.
func TestDaemonEndsDuringStart(t *testing.T) {
	t.Parallel()
	runtime := newSlowStart(t, "run")
	b := newBed(t, testbed.Options{Config: fmt.Sprintf("default_runtime = \"slow\"\n[runtimes.slow]\nruntime_path = %q\n", runtime.Path)})
	atRest := b.Rest(t)
	const running, exited = runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_EXITED
	begin := func(t *testing.T, end func(testing.TB)) (*testbed.Pod, *testbed.Container) {
		t.Helper()
		pod, c := b.sleeper(t)
		started := runtime.begin(t, b, c)
		end(t)
		testbed.Fails(t, <-started, "StartContainer succeeded though the daemon ended")
		return pod, c
	}
	kill := func(testing.TB) { b.Kill9(t) }
	lives := func(t *testing.T, pod *testbed.Pod, c *testbed.Container) {
		t.Helper()
		testbed.Same(t, c.Exec(t, "echo", "alive"), "alive\n", "exec printed")
		c.Stop(t, 0)
		if st := c.Status(t); st.GetExitCode() != 137 || st.GetStartedAt() == 0 || st.GetFinishedAt() < st.GetStartedAt() {
			t.Errorf("the container exited with %d, started at %d, finished at %d", st.GetExitCode(), st.GetStartedAt(), st.GetFinishedAt())
		}
		pod.Remove(t)
	}

	t.Run("daemon killed, start succeeds", func(t *testing.T) {
		pod, c := begin(t, kill)
		b.Start(t)
		event := b.events(t, pod)
		testbed.Same(t, c.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_CREATED, "during its start the container is")
		place(t, runtime.dir, "go")
		event(c.ID, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
		c.WaitState(t, running)
		lives(t, pod, c)
	})
	t.Run("daemon killed, start fails", func(t *testing.T) {
		pod, c := begin(t, kill)
		b.Start(t)
		event := b.events(t, pod)
		place(t, runtime.dir, "fail")
		place(t, runtime.dir, "go")
		event(c.ID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		if st := c.WaitState(t, exited); st.GetExitCode() != 128 || st.GetReason() != "StartError" || st.GetMessage() == "" {
			t.Errorf("the container exited with %d %s %q, want 128 StartError", st.GetExitCode(), st.GetReason(), st.GetMessage())
		}
		pod.Remove(t)
	})
	t.Run("daemon killed, start fails before the next daemon", func(t *testing.T) {
		pod, c := begin(t, kill)
		place(t, runtime.dir, "fail")
		place(t, runtime.dir, "go")
		b.Start(t)
		if st := c.WaitState(t, exited); st.GetExitCode() != 128 || st.GetReason() != "StartError" {
			t.Errorf("the container exited with %d %s, want 128 StartError", st.GetExitCode(), st.GetReason())
		}
		pod.Remove(t)
	})
	t.Run("daemon killed, container stopped", func(t *testing.T) {
		pod, c := begin(t, kill)
		b.Start(t)
		testbed.Check(t, b.stopContainer(testbed.Within(t, time.Minute), c.ID, 0))
		testbed.Same(t, c.Status(t).GetState(), exited, "the container is")
		place(t, runtime.dir, "go")
		pod.Remove(t)
	})
	t.Run("daemon killed, supervisor paused", func(t *testing.T) {
		var supervisor int
		pod, c := begin(t, func(testing.TB) {
			for _, supervisor = range b.supervisors(t) {
				killAs(t, supervisor, syscall.SIGSTOP)
			}
			b.Kill9(t)
		})
		b.Start(t)
		place(t, runtime.dir, "go")
		killAs(t, supervisor, syscall.SIGCONT)
		c.WaitState(t, running)
		lives(t, pod, c)
	})
	t.Run("daemon stopped, start succeeds", func(t *testing.T) {
		pod, c := begin(t, func(testing.TB) {
			killAs(t, b.PID(), syscall.SIGTERM) // the daemon waits only for a limited time
			b.Wait(t, time.Minute)
		})
		place(t, runtime.dir, "go")
		b.Start(t)
		c.WaitState(t, running)
		lives(t, pod, c)
	})
	t.Run("supervisor killed", func(t *testing.T) {
		pod, c := b.sleeper(t)
		started := runtime.begin(t, b, c)
		for _, pid := range b.supervisors(t) {
			killAs(t, pid, syscall.SIGKILL)
		}
		place(t, runtime.dir, "go")
		err := <-started
		st := c.Status(t)
		if err == nil && st.GetState() != running || err != nil && (st.GetState() != exited || st.GetReason() != "StartError") {
			t.Errorf("StartContainer returned %v, but the container is %s %s", err, st.GetState(), st.GetReason())
		}
		pod.Remove(t)
	})
	// The start had not begun, so berth repeats it and the call succeeds.
	t.Run("supervisor killed before the start", func(t *testing.T) {
		pod, c := b.sleeper(t)
		runtime.on(t, runtime.verb, "")
		runtime.calls(t) // forgets earlier calls
		old := b.supervisors(t)
		for _, pid := range old {
			killAs(t, pid, syscall.SIGSTOP)
		}
		started := make(chan error, 1)
		go func() {
			_, err := b.Client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ID})
			started <- err
		}()
		b.asked(t, "Start")
		for _, pid := range old {
			killAs(t, pid, syscall.SIGKILL)
		}
		testbed.Checkf(t, <-started, "StartContainer")
		c.WaitState(t, running)
		testbed.Same(t, runtime.calls(t), runtime.verb, "the calls of the runtime are")
		lives(t, pod, c)
	})
	for name, fails := range map[string]bool{"connection lost, start succeeds": false, "connection lost, start fails": true} {
		t.Run(name, func(t *testing.T) {
			pod, c := b.sleeper(t)
			started := runtime.begin(t, b, c)
			b.disconnect(t)
			if fails {
				place(t, runtime.dir, "fail")
			}
			place(t, runtime.dir, "go")
			err := <-started
			if fails {
				if st := c.Status(t); err == nil || st.GetState() != exited || st.GetReason() != "StartError" {
					t.Errorf("StartContainer returned %v, but the container is %s %s", err, st.GetState(), st.GetReason())
				}
				pod.Remove(t)
				return
			}
			testbed.Mustf(t, err, "StartContainer failed though the start continued")
			c.WaitState(t, running)
			lives(t, pod, c)
		})
	}
	runtime.on(t, runtime.verb, "")
	b.NothingLeft(t, atRest)
}

// disconnect shuts down all connections between the daemon and its supervisors, at the
// supervisors' ends. The processes run on.
func (b *bed) disconnect(t *testing.T) {
	t.Helper()
	ended := 0
	b.connections(t, func(fd int) error {
		ended++
		return unix.Shutdown(fd, unix.SHUT_RDWR)
	})
	if ended == 0 {
		t.Fatal("the daemon has no connection to a supervisor")
	}
}

// asked waits until the daemon has called a method of a supervisor that is paused by SIGSTOP.
func (b *bed) asked(t *testing.T, method string) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		asked := false
		b.connections(t, func(fd int) error {
			unread := make([]byte, 64<<10)
			n, _, err := unix.Recvfrom(fd, unread, unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				return nil
			}
			asked = asked || bytes.Contains(unread[:max(n, 0)], []byte(method))
			return err
		})
		if !asked {
			return fmt.Errorf("the daemon has not called %s of a supervisor", method)
		}
		return nil
	})
}

// connections calls use with each supervisor's end of its connections to the daemon.
func (b *bed) connections(t *testing.T, use func(fd int) error) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/unix")
	testbed.Must(t, err)
	const connected = "03"
	inodes := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) == 8 && f[5] == connected && strings.HasPrefix(f[7], b.State+"/") && filepath.Base(f[7]) == "shim.sock" {
			inodes["socket:["+f[6]+"]"] = true
		}
	}
	for _, pid := range b.supervisors(t) {
		process, err := unix.PidfdOpen(pid, 0)
		testbed.Must(t, err)
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(dir)
		testbed.Must(t, err)
		for _, e := range entries {
			number, _ := strconv.Atoi(e.Name())
			if link, _ := os.Readlink(filepath.Join(dir, e.Name())); !inodes[link] {
				continue
			}
			fd, err := unix.PidfdGetfd(process, number, 0)
			if err == nil {
				err = errors.Join(use(fd), unix.Close(fd))
			}
			testbed.Must(t, err)
		}
		_ = unix.Close(process)
	}
}

// TestDaemonKilledDuringSandboxStart kills the daemon while a runtime hangs in the
// start of a sandbox process. The next daemon must roll the partially created sandbox
// back without waiting for that start.
func TestDaemonKilledDuringSandboxStart(t *testing.T) {
	runtime := newSlowStart(t, "run")
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"slow\"\n[runtimes.slow]\nruntime_path = %q\nsandbox_process = \"always\"\n", runtime.Path)})
	atRest := b.Rest(t)
	runtime.hold(t)
	made := make(chan error, 1)
	go func() {
		_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
		made <- err
	}()
	runtime.begun(t)
	b.Kill9(t)
	testbed.Fails(t, <-made, "RunPodSandbox succeeded though the daemon was killed")
	b.Start(t)
	testbed.Eventually(t, time.Minute, func() error {
		if listed := b.listed(t); listed != "" {
			return fmt.Errorf("the states are %s, want none", listed)
		}
		return nil
	})
	place(t, runtime.dir, "go")
	runtime.on(t, runtime.verb, "")
	b.NothingLeft(t, atRest)
}
