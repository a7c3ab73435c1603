package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestFailedContainerHoldsNothing has the runtime refuse a container, for one kind
// of handler when it is created and for the other when it is started. Its log is
// nobody's, and the same container is made as if nothing had been.
func TestFailedContainerHoldsNothing(t *testing.T) {
	runtime := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"oci\"\n[runtimes.oci]\nruntime_path = %[1]q\n[runtimes.shim]\nruntime_path = %[2]q\n[runtimes.shim.options]\nBinaryName = %[1]q\n",
		runtime.Path, testbed.Part(t, testbed.RuncShim))})
	atRest := b.Rest(t)
	for handler, verb := range map[string]string{"oci": "run", "shim": "create"} {
		t.Run(handler, func(t *testing.T) {
			pod := b.Client.RunSandbox(t, testbed.PodSpec{Handler: handler})
			// The supervisor that comes with the first is kept for the next.
			pod.RunContainer(t, "first", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
			before := b.Snapshot(t)
			config := b.Client.ContainerConfig("main", b.Image, "echo", "well")
			log := filepath.Join(pod.Config.GetLogDirectory(), config.GetLogPath())
			testbed.Must(t, os.MkdirAll(filepath.Dir(log), 0o755))
			runtime.on(t, verb, "echo 'not this one' >&2; exit 1")
			id, err := b.createAndStart(t, pod, config)
			if err == nil {
				t.Fatal("the runtime's refusal was not told")
			}
			runtime.on(t, verb, "")
			testbed.Empty(t, holders(t, log), "the log of the refused container is open in processes")
			if id != "" {
				if _, err := b.Client.RemoveContainer(testbed.Within(t, time.Minute), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
					t.Fatal(err)
				}
			}
			b.NoLeaks(t, before)
			if id, err = b.createAndStart(t, pod, config); err != nil {
				t.Fatalf("the same container once more: %v", err)
			}
			(&testbed.Container{ID: id, LogPath: log}).WaitLog(t, "well")
			pod.Remove(t)
		})
	}
	b.NothingLeft(t, atRest)
}

// createAndStart returns the id of what was created, started or not.
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

// holders are the processes that have a file open.
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
