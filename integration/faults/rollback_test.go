package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// only returns the listed container, which must be the only one.
func (b *bed) only(t *testing.T) *runtimeapi.Container {
	t.Helper()
	list, err := b.Client.ListContainers(testbed.Within(t, time.Minute), &runtimeapi.ListContainersRequest{})
	testbed.Must(t, err)
	if n := len(list.GetContainers()); n != 1 {
		t.Fatalf("%d containers are listed, want 1", n)
	}
	return list.GetContainers()[0]
}

// failedCreation fails the test unless the container is listed as EXITED with
// CreateError, and another creation under its name and attempt is refused.
func (b *bed) failedCreation(t *testing.T, sandbox string, config *runtimeapi.ContainerConfig, podConfig *runtimeapi.PodSandboxConfig) {
	t.Helper()
	left := b.only(t)
	st, err := b.Client.ContainerStatus(testbed.Within(t, time.Minute), &runtimeapi.ContainerStatusRequest{ContainerId: left.GetId()})
	testbed.Must(t, err)
	s := st.GetStatus()
	if s.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || s.GetExitCode() != 128 || s.GetReason() != "CreateError" ||
		s.GetMessage() == "" || s.GetFinishedAt() == 0 {
		t.Errorf("the container is %s %d %s %q, want EXITED 128 CreateError", s.GetState(), s.GetExitCode(), s.GetReason(), s.GetMessage())
	}
	create := &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: podConfig}
	_, err = b.Client.CreateContainer(testbed.Within(t, time.Minute), create)
	testbed.Refused(t, err, codes.AlreadyExists, "next attempt", left.GetId())
}

// TestCreationCannotBeRolledBack has a shim hang in Create. The shim may still create
// the container, so the container must be listed for the kubelet to remove.
func TestCreationCannotBeRolledBack(t *testing.T) {
	t.Parallel()
	hang := hanging()
	runtime := newScripted(t)
	config := strings.Replace(shimConfig(t, testbed.Part(t, testbed.RuncShim)), testbed.Part(t, testbed.Runc), runtime.Path, 1)
	config = strings.Replace(config, "container_create_timeout = \"10s\"\n", "container_create_timeout = \"6s\"\n", 1)
	b := newBed(t, testbed.Options{Config: config})
	atRest := b.Rest(t)
	pod := b.Client.RunSandbox(t, testbed.PodSpec{})
	runtime.on(t, "create", "exec "+hang)
	container := b.Client.ContainerConfig("main", b.Image, "sleep", "3600")
	_, err := pod.TryCreate(t, container)
	testbed.Refused(t, err, codes.DeadlineExceeded, "create container")
	runtime.on(t, "create", "")
	b.failedCreation(t, pod.ID, container, pod.Config)
	b.Kill9(t)
	b.Start(t)
	b.failedCreation(t, pod.ID, container, pod.Config)

	// The kubelet's next attempt works.
	left := b.only(t).GetId()
	container.Metadata.Attempt++
	next, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{
		PodSandboxId: pod.ID, Config: container, SandboxConfig: pod.Config,
	})
	testbed.Must(t, err)
	if _, err := b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: next.GetContainerId()}); err != nil {
		t.Error(err)
	}
	if _, err := b.Client.RemoveContainer(testbed.Within(t, time.Minute), &runtimeapi.RemoveContainerRequest{ContainerId: left}); err != nil {
		t.Error(err)
	}
	testbed.Same(t, b.only(t).GetId(), next.GetContainerId(), "after the removal of %s, the only container is", left)
	pod.Remove(t)
	b.NothingLeft(t, atRest)
	testbed.Same(t, pidOf(t, hang), 0, "the pid of the hanging command is")
}

// TestPartialContainerCannotBeRolledBack kills the daemon in the middle of a
// creation, and pauses the supervisor, so that the next daemon cannot roll back.
func TestPartialContainerCannotBeRolledBack(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}})
	atRest := b.Rest(t)
	b.Stop(t)
	b.SetEnvironment("BERTH_FAILPOINT=" + failpoint.ContainerMounted)
	b.Start(t)
	podConfig := b.Client.SandboxConfig("")
	run, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: podConfig})
	testbed.Must(t, err)
	container := b.Client.ContainerConfig("main", b.Image, "sleep", "3600")
	create := &runtimeapi.CreateContainerRequest{PodSandboxId: run.GetPodSandboxId(), Config: container, SandboxConfig: podConfig}
	if _, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), create); status.Code(err) != codes.Unavailable {
		t.Fatalf("CreateContainer returned %v, want Unavailable because the daemon was killed", err)
	}
	b.Wait(t, time.Minute)
	b.SetEnvironment()
	var stopped []int
	resume := func() {
		for _, pid := range stopped {
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Error(err)
			}
		}
		stopped = nil
	}
	defer resume()
	for _, pid := range b.supervisors(t) {
		killAs(t, pid, syscall.SIGSTOP)
		stopped = append(stopped, pid)
	}
	if len(stopped) != 1 {
		t.Fatalf("supervisors: %v, want one", stopped)
	}
	b.Start(t)
	b.failedCreation(t, run.GetPodSandboxId(), container, podConfig)
	resume()
	if _, err := b.Client.RemoveContainer(testbed.Within(t, time.Minute), &runtimeapi.RemoveContainerRequest{ContainerId: b.only(t).GetId()}); err != nil {
		t.Error(err)
	}
	if _, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), create); err != nil {
		t.Errorf("create after the removal: %v", err)
	}
	b.NothingLeft(t, atRest)
}

// TestFailedContainerHoldsNothing has the runtime refuse a container: at the start
// under runc, at the creation under a shim. Afterwards no process has its log open,
// and the same container can be created and started.
func TestFailedContainerHoldsNothing(t *testing.T) {
	runtime := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"oci\"\n[runtimes.oci]\nruntime_path = %[1]q\n[runtimes.shim]\nruntime_path = %[2]q\n[runtimes.shim.options]\nBinaryName = %[1]q\n",
		runtime.Path, testbed.Part(t, testbed.RuncShim))})
	atRest := b.Rest(t)
	for handler, verb := range map[string]string{"oci": "run", "shim": "create"} {
		t.Run(handler, func(t *testing.T) {
			pod := b.Client.RunSandbox(t, testbed.PodSpec{Handler: handler})
			// The first container also starts the supervisor, which then stays.
			pod.RunContainer(t, "first", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
			before := b.Snapshot(t)
			config := b.Client.ContainerConfig("main", b.Image, "echo", "well")
			log := filepath.Join(pod.Config.GetLogDirectory(), config.GetLogPath())
			testbed.Must(t, os.MkdirAll(filepath.Dir(log), 0o755))
			runtime.on(t, verb, "echo 'not this one' >&2; exit 1")
			id, err := b.createAndStart(t, pod, config)
			if err == nil {
				t.Fatal("the container started though its runtime failed")
			}
			runtime.on(t, verb, "")
			testbed.Empty(t, holders(t, log), "processes that have the log of the failed container open")
			if id != "" {
				if _, err := b.Client.RemoveContainer(testbed.Within(t, time.Minute), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
					t.Fatal(err)
				}
			}
			b.NoLeaks(t, before)
			if id, err = b.createAndStart(t, pod, config); err != nil {
				t.Fatalf("create and start the same container again: %v", err)
			}
			(&testbed.Container{ID: id, LogPath: log}).WaitLog(t, "well")
			pod.Remove(t)
		})
	}
	b.NothingLeft(t, atRest)
}

// createAndStart creates and starts a container. It returns the ID also if only the start failed.
func (b *bed) createAndStart(t *testing.T, pod *testbed.Pod, config *runtimeapi.ContainerConfig) (string, error) {
	t.Helper()
	ctx := testbed.Within(t, time.Minute)
	r, err := b.Client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: config, SandboxConfig: pod.Config})
	if err != nil {
		return "", err
	}
	_, err = b.Client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: r.GetContainerId()})
	return r.GetContainerId(), err
}

// holders returns the pids of the processes that have a file open.
func holders(t *testing.T, path string) []string {
	t.Helper()
	descriptors, err := filepath.Glob("/proc/[0-9]*/fd/*")
	testbed.Must(t, err)
	var pids []string
	for _, d := range descriptors {
		if file, err := os.Readlink(d); err == nil && file == path {
			pids = append(pids, filepath.Base(filepath.Dir(filepath.Dir(d))))
		}
	}
	return pids
}
