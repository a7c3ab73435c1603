package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// createTimeout is container_create_timeout of the handlers here: long enough for a working
// runtime on a busy machine.
const createTimeout = 4 * time.Second

// hanging is a command that does not exit. Each call returns a different one.
func hanging() string {
	return fmt.Sprintf("sleep %d%03d", 1_000_000+os.Getpid(), hangs.Add(1))
}

var hangs atomic.Int64

// pidOf returns the process that runs a command, or 0.
func pidOf(t *testing.T, command string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	testbed.Must(t, err)
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || strings.ReplaceAll(strings.TrimRight(string(line), "\x00"), "\x00", " ") != command {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			return pid
		}
	}
	return 0
}

func (b *bed) sleeper(t *testing.T) (*testbed.Pod, *testbed.Container) {
	t.Helper()
	pod := b.Client.RunSandbox(t, testbed.PodSpec{})
	container := pod.CreateContainer(t, "main", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	return pod, container
}

func (b *bed) tryStart(t *testing.T, c *testbed.Container) error {
	t.Helper()
	_, err := b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: c.ID})
	return err
}

// TestBadRuntime has a runtime fail in different ways at the start of a container,
// and then work again.
func TestBadRuntime(t *testing.T) {
	t.Parallel()
	hang := hanging()
	runtime := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"bad\"\n[runtimes.bad]\nruntime_path = %q\ncontainer_create_timeout = %q\n", runtime.Path, createTimeout)})
	atRest := b.Rest(t)
	runc := testbed.Part(t, testbed.Runc)

	for _, c := range []struct {
		name string
		run  string // lines of shell in place of `run`
		code codes.Code
		says []string
	}{
		{"fails", "echo 'no such luck today' >&2; exit 1", codes.Unknown, []string{"no such luck today"}},
		{"fails without output", "exit 3", codes.Unknown, []string{"status 3", "--version\" works"}},
		{"hangs", "exec " + hang, codes.DeadlineExceeded, []string{"timed out", " run ", "--version", "hangs too", "container_create_timeout"}},
		{"hangs with a child", hang + "; exit 0", codes.DeadlineExceeded, []string{"timed out"}},
		{"succeeds without a container", "exit 0", codes.Unknown, []string{"reported a start", "PID"}},
		{"is killed", "kill -9 $$", codes.Unknown, nil},
		{"starts and fails", fmt.Sprintf("%s \"$@\"; echo 'after the start' >&2; exit 1", runc), codes.Unknown, []string{"after the start"}},
		{"starts and hangs", fmt.Sprintf("%s \"$@\"; exec %s", runc, hang), codes.DeadlineExceeded, []string{"timed out"}},
		{"fails with much output", "i=0; while [ $i -lt 3000 ]; do echo 'blah blah blah blah' >&2; i=$((i+1)); done; exit 1", codes.Unknown, []string{"blah"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod, container := b.sleeper(t)
			runtime.on(t, "run", c.run)
			begin := time.Now()
			err := b.tryStart(t, container)
			testbed.Refused(t, err, c.code, append(c.says, "start container")...)
			tookAtMost(t, createTimeout+time.Minute/2, begin, "the start")
			runtime.on(t, "run", "")
			st := container.Status(t)
			if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 128 ||
				st.GetReason() != "StartError" || st.GetMessage() == "" || st.GetFinishedAt() == 0 {
				t.Errorf("the container is %s %d %s %q, want EXITED 128 StartError", st.GetState(), st.GetExitCode(), st.GetReason(), st.GetMessage())
			}
			testbed.Same(t, pidOf(t, hang), 0, "the pid of the hanging command is")
			// The sandbox still works.
			pod.RunContainer(t, "next", testbed.PodSpec{Image: b.Image, Command: []string{"true"}}).WaitExit(t)
			pod.Remove(t)
		})
	}
	b.NothingLeft(t, atRest)
}

// TestAbsentProgram starts a container whose program is not in the image.
func TestAbsentProgram(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	pod := b.Client.RunSandbox(t, testbed.PodSpec{})
	c := pod.CreateContainer(t, "main", testbed.PodSpec{Image: b.Image, Command: []string{"/no/such/program"}})
	testbed.Refused(t, b.tryStart(t, c), codes.Unknown, "/no/such/program")
	// A missing program is not recorded as a failure of the runtime.
	if text, err := os.ReadFile(filepath.Join(b.State, "failures", "runc")); err == nil {
		t.Errorf("a failure of the runtime was recorded: %s", text)
	}
	if st := c.Status(t); st.GetExitCode() != 128 || st.GetReason() != "StartError" || !strings.Contains(st.GetMessage(), "/no/such/program") {
		t.Errorf("the container is %s %d %s %q", st.GetState(), st.GetExitCode(), st.GetReason(), st.GetMessage())
	}
	b.NothingLeft(t, atRest)
}

// TestRuntimeDeleted removes a runtime and its kept binaries before each step of a pod:
// creation, start, stop.
func TestRuntimeDeleted(t *testing.T) {
	runtime := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"gone\"\n[runtimes.gone]\nruntime_path = %q\n", runtime.Path)})
	atRest := b.Rest(t)
	aside := filepath.Join(filepath.Dir(runtime.Path), "aside")
	without := func(f func()) {
		t.Helper()
		testbed.Must(t, os.Rename(runtime.Path, aside))
		removeCopies(t, filepath.Join(b.Root, "tools", "runtime-*", filepath.Base(runtime.Path)))
		f()
		testbed.Must(t, os.Rename(aside, runtime.Path))
		// The daemon may have probed the handler while the runtime was away. A new probe
		// makes the handler ready again.
		if h, err := b.probe(t, "gone", false); err != nil || h.GetProbeError() != "" {
			t.Fatalf("probe after the runtime was restored: %v, %v", err, h.GetProbeError())
		}
	}

	without(func() {
		_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
		testbed.Refused(t, err, codes.Unavailable, runtime.Path, "runtime_path")
	})
	pod, container := b.sleeper(t)
	without(func() {
		testbed.Refused(t, b.tryStart(t, container), codes.FailedPrecondition, runtime.Path, "kept binary")
	})
	if st := container.Status(t); st.GetExitCode() != 128 || st.GetReason() != "StartError" {
		t.Errorf("the container is %s %d %s", st.GetState(), st.GetExitCode(), st.GetReason())
	}
	without(func() {
		_, err := pod.TryCreate(t, b.Client.ContainerConfig("second", b.Image, "true"))
		testbed.Refused(t, err, codes.FailedPrecondition, runtime.Path, "kept binary")
	})
	pod.Remove(t)

	// A running pod can be stopped without its runtime, by signals to its processes. The
	// removal may need the runtime.
	running := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	without(func() {
		running.Container.Stop(t, 0)
		exitedWith(t, running.Container.Status(t), 137)
		running.Stop(t)
		if leases, err := b.CNI.Leases(); err != nil || len(leases) > 0 {
			t.Errorf("the pod that was stopped without its runtime still has addresses: %v (%v)", leases, err)
		}
	})
	running.Remove(t)
	b.NothingLeft(t, atRest)
}

// removeCopies removes matching files until none appears for a while: a copy that began
// before the original was moved may still finish.
func removeCopies(t *testing.T, pattern string) {
	t.Helper()
	const quiet = 20
	gone := 0
	testbed.Poll(t, time.Minute, 20*time.Millisecond, func() error {
		copies, err := filepath.Glob(pattern)
		testbed.Must(t, err)
		gone++
		for _, path := range copies {
			testbed.Must(t, os.Remove(path))
			gone = 0
		}
		if gone < quiet {
			return fmt.Errorf("files still appear at %s", pattern)
		}
		return nil
	})
}

// TestRuntimeCannotDelete has `delete` fail or hang. RemoveContainer may succeed or fail,
// but must not return NotFound. Nothing may be left once the runtime works again.
func TestRuntimeCannotDelete(t *testing.T) {
	t.Parallel()
	hang := hanging()
	runtime := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"bad\"\n[runtimes.bad]\nruntime_path = %q\ncontainer_create_timeout = %q\n", runtime.Path, createTimeout)})
	atRest := b.Rest(t)
	for name, lines := range map[string]string{"fails": "echo 'will not' >&2; exit 1", "hangs": "exec " + hang} {
		t.Run(name, func(t *testing.T) {
			pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
			runtime.on(t, "delete", lines)
			pod.Container.Stop(t, 0)
			testbed.Same(t, pod.Container.Status(t).GetExitCode(), 137, "exit code is")
			_, err := b.Client.RemoveContainer(testbed.Within(t, time.Minute), &runtimeapi.RemoveContainerRequest{ContainerId: pod.Container.ID})
			t.Logf("RemoveContainer while delete %s: %v", name, err)
			if err != nil && status.Code(err) == codes.NotFound {
				t.Errorf("RemoveContainer returned NotFound, which the kubelet takes for success: %v", err)
			}
			runtime.on(t, "delete", "")
			pod.Remove(t)
			b.NothingLeft(t, atRest)
		})
	}
}
