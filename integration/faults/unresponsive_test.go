package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// answerBound limits the time of a call with a timeout of two seconds: it includes the check
// whether the process responds, and delays on a busy machine. It is less than the twenty seconds
// that the rollback of a command once took.
const answerBound = 18 * time.Second

// refusedBy fails the test unless all calls return in time, with an error that names the
// unresponsive process.
func refusedBy(t *testing.T, who string, pid int, calls map[string]func(context.Context) error) {
	t.Helper()
	for name, call := range calls {
		began := time.Now()
		err := call(testbed.Within(t, 2*time.Minute))
		if took := time.Since(began); took > answerBound {
			t.Errorf("%s took %v, more than %v", name, took, answerBound)
		}
		if err == nil {
			t.Errorf("%s succeeded, though the process is paused", name)
			continue
		}
		for _, words := range []string{who, fmt.Sprintf("(process %d)", pid), "unresponsive"} {
			if !strings.Contains(err.Error(), words) {
				t.Errorf("%s: the error does not have %q: %v", name, words, err)
			}
		}
	}
}

func (b *bed) execFor(c *testbed.Container, seconds int64) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := b.Client.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"true"}, Timeout: seconds})
		return err
	}
}

func (b *bed) resizeOf(c *testbed.Container) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := b.Client.UpdateContainerResources(ctx, &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: c.ID, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 512},
		})
		return err
	}
}

func (b *bed) reopenOf(c *testbed.Container) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := b.Client.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: c.ID})
		return err
	}
}

// degradedFor fails the test unless status and doctor name the unresponsive process.
func (b *bed) degradedFor(t *testing.T, who string, pid int) {
	t.Helper()
	examined, _ := b.berth(t, "doctor", "--config", b.ConfigFile) // doctor may fail for other reasons on this machine
	for from, said := range map[string]string{"status": b.degradedBy(t), "doctor": examined} {
		if !strings.Contains(said, who) || !strings.Contains(said, fmt.Sprintf("(process %d) is unresponsive since", pid)) {
			t.Errorf("berth %s does not name %s (process %d): %s", from, who, pid, said)
		}
	}
}

// TestUnresponsiveSupervisor pauses the supervisor of two pods by SIGSTOP. Calls must fail in time,
// and pods can be stopped. A regression test: calls once waited for five minutes or longer.
func TestUnresponsiveSupervisor(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{
		Runtimes:       map[string]string{"runc": testbed.Part(t, testbed.Runc), "runsc": testbed.Part(t, testbed.Runsc)},
		DefaultRuntime: "runc",
	})
	atRest := b.Rest(t)
	for _, handler := range []string{"runc", "runsc"} {
		t.Run(handler, func(t *testing.T) {
			pod := b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{"sh", "-c", polite}})
			stubborn := pod.RunContainer(t, "stubborn", testbed.PodSpec{Image: b.Image, Command: family})
			other := b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{"sh", "-c", polite}})
			key, otherPID := b.info(t, pod.Container.ID).Supervisor, b.info(t, other.Container.ID).PID
			otherLife := life(t, otherPID)
			inside := inCgroup(t, b.info(t, stubborn.ID).PID)
			stopSupervisor := func() int {
				pid := b.supervisors(t)[key]
				killAs(t, pid, syscall.SIGSTOP)
				return pid
			}

			first := stopSupervisor()
			b.degradedFor(t, key, first)
			refusedBy(t, key, first, map[string]func(context.Context) error{
				"an exec with a timeout of 2 s": b.execFor(stubborn, 2),
				"an exec without a timeout":     b.execFor(stubborn, 0),
				"an update of limits":           b.resizeOf(stubborn),
				"a reopening of the log":        b.reopenOf(stubborn),
			})
			began := time.Now()
			testbed.Checkf(t, b.stopContainer(testbed.Within(t, 2*time.Minute), pod.Container.ID, 2), "stop of a container")
			tookAtMost(t, answerBound, began, "the stop of a container")
			exitedWith(t, pod.Container.Status(t), 7)
			stubborn.Exec(t, "true")

			second := stopSupervisor()
			if second == first {
				t.Errorf("supervisor %d has no successor", first)
			}
			began = time.Now()
			testbed.Checkf(t, pod.TryStop(t, 2*time.Minute), "stop of the pod")
			tookAtMost(t, answerBound, began, "the stop of the pod")
			noneRuns(t, inside)
			exitedWith(t, stubborn.Status(t), 137)
			testbed.Same(t, life(t, otherPID), otherLife, "the container of the other pod was process %s and is", otherLife)
			other.Container.Exec(t, "true")
			testbed.Same(t, b.degradedBy(t), "", "with a new supervisor, the degraded status is")
			other.Container.Stop(t, 20*time.Second)
			endedWith(t, other.Container, 7)
			pod.Remove(t)
			other.Remove(t)
		})
	}
	b.NothingLeft(t, atRest)
}

// TestUnresponsiveShim pauses the shim of a pod, and then the supervisor that writes the log of
// another pod, by SIGSTOP.
func TestUnresponsiveShim(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{Config: shimConfig(t, testbed.Part(t, testbed.RuncShim))})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: family})
	other := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", polite}})
	inside := inCgroup(t, b.info(t, pod.Container.ID).PID)
	shim := shimsOf(t, pod.ID)
	if len(shim) != 1 {
		t.Fatalf("the pod has shims %v", shim)
	}
	killAs(t, shim[0], syscall.SIGSTOP)
	b.degradedFor(t, "shim", shim[0])
	refusedBy(t, "shim", shim[0], map[string]func(context.Context) error{
		"an exec with a timeout of 2 s": b.execFor(pod.Container, 2),
		"an update of limits":           b.resizeOf(pod.Container),
		"a stop with a timeout of 2 s": func(ctx context.Context) error {
			return b.stopContainer(ctx, pod.Container.ID, 2)
		},
	})
	began := time.Now()
	testbed.Checkf(t, pod.TryStop(t, 2*time.Minute), "stop of the pod")
	tookAtMost(t, answerBound, began, "the stop of the pod")
	noneRuns(t, append(inside, shim...))
	pod.Remove(t)

	// The supervisor writes the log. The cleanup of the removed pod may replace the paused
	// supervisor before this call: then the new supervisor answers.
	for key, pid := range b.supervisors(t) {
		killAs(t, pid, syscall.SIGSTOP)
		began := time.Now()
		err := b.reopenOf(other.Container)(testbed.Within(t, 2*time.Minute))
		if took := time.Since(began); took > answerBound || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%s (process %d) is unresponsive", key, pid)) {
			t.Errorf("reopening the log returned after %v: %v", took, err)
		}
	}
	other.Container.Stop(t, 20*time.Second)
	endedWith(t, other.Container, 7)
	other.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestUnresponsiveSupervisorWithoutSuccessor stops a pod whose supervisor is paused and cannot be
// replaced, because its program is missing. All processes of the pod must still be killed.
func TestUnresponsiveSupervisorWithoutSuccessor(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: family})
	info := b.info(t, pod.Container.ID)
	inside, supervisor := inCgroup(t, info.PID), b.supervisors(t)[info.Supervisor]
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", supervisor))
	testbed.Must(t, err)
	away := filepath.Join(t.TempDir(), "shim") // the daemon removes unknown files beside the program
	testbed.Must(t, os.Rename(program, away))
	killAs(t, supervisor, syscall.SIGSTOP)
	if _, err := b.Client.StopPodSandbox(testbed.Within(t, 2*time.Minute), &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.ID}); err == nil {
		t.Error("the stop succeeded, though no supervisor could report the exit of the container")
	}
	for _, pid := range inside {
		awaitEnd(t, pid)
	}
	testbed.Must(t, os.Rename(away, program))
	testbed.Eventually(t, time.Minute, func() error { // berth waits before it tries again to start a supervisor
		return pod.TryStop(t, time.Minute)
	})
	testbed.Same(t, pod.Container.Status(t).GetExitCode(), 137, "the container exited with")
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestWhatIsMadeWaitsForTheShim: the creation and start of a container wait for a shim or
// supervisor that is paused for some seconds. A regression test: the container once failed.
func TestWhatIsMadeWaitsForTheShim(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{Config: shimConfig(t, testbed.Part(t, testbed.RuncShim)) +
		fmt.Sprintf("[runtimes.runc]\nruntime_path = %q\n", testbed.Part(t, testbed.Runc))})
	for _, handler := range []string{"shim", "runc"} {
		t.Run(handler, func(t *testing.T) {
			pod := b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{"sh", "-c", polite}})
			process := func() int {
				if handler == "shim" {
					return shimsOf(t, pod.ID)[0]
				}
				return b.supervisors(t)[b.info(t, pod.Container.ID).Supervisor]
			}
			pid := process()
			killAs(t, pid, syscall.SIGSTOP)
			// This call marks the process as unresponsive for the next calls.
			if err := b.execFor(pod.Container, 30)(testbed.Within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), "unresponsive") {
				t.Errorf("exec returned %v, want an error that the process is unresponsive", err)
			}
			time.AfterFunc(2*time.Second, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			second := pod.RunContainer(t, "second", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}})
			if st := second.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Errorf("the container is %s: %s %s, want RUNNING", st.GetState(), st.GetReason(), st.GetMessage())
			}
			testbed.Same(t, process(), pid, "process %d was replaced by", pid)
		})
	}
}

// TestStartThatAShimDoesLate: a container whose start failed because its shim was paused must not
// run when the shim resumes. A regression test: it once ran while it was listed as exited.
func TestStartThatAShimDoesLate(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{Config: shimConfig(t, testbed.Part(t, testbed.RuncShim))})
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", polite}})
	second := pod.CreateContainer(t, "second", testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", "while :; do echo alive; sleep 0.2; done"}})
	pid := shimsOf(t, pod.ID)[0]
	killAs(t, pid, syscall.SIGSTOP)
	_, err := b.Client.StartContainer(testbed.Within(t, 10*time.Minute), &runtimeapi.StartContainerRequest{ContainerId: second.ID})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(process %d) is unresponsive since", pid)) {
		t.Errorf("StartContainer returned %v, want an error that the shim is unresponsive", err)
	}
	testbed.Same(t, second.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_EXITED, "the container is")
	killAs(t, pid, syscall.SIGCONT)
	testbed.Eventually(t, time.Minute, func() error {
		before := len(second.Log(t))
		time.Sleep(3 * time.Second) // a shim starts a container in less time
		if after := len(second.Log(t)); after != before {
			return fmt.Errorf("the container runs: its log had %d lines, then %d", before, after)
		}
		return nil
	})
	pod.Container.Exec(t, "true")
}
