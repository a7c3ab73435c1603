package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// slowBridge is a script that runs the real plugin, but waits in ADD while a file
// exists.
const slowBridge = `#!/bin/sh
dir="DIR"
if [ "$CNI_COMMAND" = ADD ]; then
	touch "$dir/begun"
	while [ -e "$dir/hold" ]; do sleep 0.05; done
fi
exec "REAL"
`

// TestNotListedBeforeItIsMade: a sandbox is not listed while its network is set up. A
// kubelet would regard a listed one as failed, and create another.
func TestNotListedBeforeItIsMade(t *testing.T) {
	dir := t.TempDir()
	b := newBed(t, testbed.Options{Config: plugin(t, dir, "bridge", slowBridge)})
	atRest := b.Rest(t)
	testbed.Must(t, os.Remove(filepath.Join(dir, "begun")))
	place(t, dir, "hold")
	config := b.Client.SandboxConfig("early")
	type answer struct {
		id  string
		err error
	}
	made := make(chan answer, 1)
	go func() {
		r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config})
		made <- answer{r.GetPodSandboxId(), err}
	}()
	testbed.Eventually(t, time.Minute, func() error { _, err := os.Stat(filepath.Join(dir, "begun")); return err })

	testbed.Same(t, b.shown(t), 0, "sandboxes listed during the creation:")
	// A second call for the same sandbox must not create another one.
	again := make(chan answer, 1)
	impatient, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	go func() {
		r, err := b.Client.RunPodSandbox(impatient, &runtimeapi.RunPodSandboxRequest{Config: config})
		again <- answer{r.GetPodSandboxId(), err}
	}()
	second := <-again
	if second.err == nil {
		t.Errorf("the second call returned sandbox %s before its network was set up", second.id)
	}
	testbed.Same(t, b.shown(t), 0, "sandboxes listed after the second call:")
	testbed.Must(t, os.Remove(filepath.Join(dir, "hold")))
	first := <-made
	if first.err != nil {
		t.Fatal(first.err)
	}
	testbed.Same(t, b.listed(t), "SANDBOX_READY", "the states are")
	b.NothingLeft(t, atRest)
}

// shown lists sandboxes, also by stream, their statistics and metrics. It returns the largest count.
func (b *bed) shown(t *testing.T) int {
	t.Helper()
	ctx := testbed.Within(t, time.Minute)
	list, err := b.Client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	testbed.Must(t, err)
	streamed := 0
	stream, err := b.Client.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{})
	for err == nil {
		var r *runtimeapi.StreamPodSandboxesResponse
		if r, err = stream.Recv(); err == nil {
			streamed += len(r.GetPodSandboxes())
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	metrics, err := b.Client.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	testbed.Must(t, err)
	return max(len(list.GetItems()), streamed, len(b.podStats(t, time.Minute)), len(metrics.GetPodMetrics()))
}

// TestSandboxProcessKilled kills the sandbox process. The sandbox must become NOTREADY
// without a call that concerns it, and the pod can be stopped and removed.
func TestSandboxProcessKilled(t *testing.T) {
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(
		"default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = %q\nsandbox_process = \"always\"\n[runtimes.runsc]\nruntime_path = %q\n",
		testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Runsc))})
	atRest := b.Rest(t)
	for _, handler := range []string{"runc", "runsc"} {
		t.Run(handler, func(t *testing.T) {
			pod := b.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: b.Image, Command: []string{"sleep", "3600"}})
			killAs(t, b.sandboxPID(t, pod.ID), syscall.SIGKILL)
			testbed.Eventually(t, time.Minute, func() error {
				list, err := b.Client.ListPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.ListPodSandboxRequest{})
				if err != nil || len(list.GetItems()) != 1 {
					t.Fatalf("list: %v, %v", list, err)
				}
				if state := list.GetItems()[0].GetState(); state != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
					return fmt.Errorf("the sandbox is %s", state)
				}
				return nil
			})
			pod.Remove(t)
		})
	}
	b.NothingLeft(t, atRest)
}

// sandboxPID is the pid of a sandbox's process.
func (b *bed) sandboxPID(t *testing.T, sandbox string) int {
	t.Helper()
	r, err := b.Client.PodSandboxStatus(testbed.Within(t, time.Minute), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
	testbed.Must(t, err)
	var i info
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &i); err != nil || i.PID == 0 {
		t.Fatalf("the pid in the sandbox's verbose status is %d: %v", i.PID, err)
	}
	return i.PID
}

// TestSandboxProcessFails has the start of a sandbox process fail after the network was
// set up. Nothing of the sandbox may be left, and its name must be free.
func TestSandboxProcessFails(t *testing.T) {
	t.Parallel()
	hang := hanging()
	runtime := newScripted(t)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(`
default_runtime = "oci"
[runtimes.oci]
runtime_path = %[1]q
sandbox_process = "always"
container_create_timeout = %[3]q
[runtimes.shim]
runtime_path = %[2]q
container_create_timeout = %[3]q
[runtimes.shim.options]
BinaryName = %[1]q
`, runtime.Path, testbed.Part(t, testbed.RuncShim), createTimeout)})
	atRest := b.Rest(t)
	config := b.Client.SandboxConfig("")
	run := func(handler string) (string, error) {
		r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		return r.GetPodSandboxId(), err
	}
	for name, c := range map[string]struct {
		handler, verb, lines string
		code                 codes.Code
		says                 string
	}{
		"fails":                      {"oci", "run", "exit 3", codes.Unknown, "status 3; see whether"},
		"hangs":                      {"oci", "run", "exec " + hang, codes.DeadlineExceeded, "--version\" hangs too"},
		"succeeds without a process": {"oci", "run", "exit 0", codes.Unknown, "pid"},
		"shim fails":                 {"shim", "create", "exit 1", codes.Unknown, "did not terminate successfully: exit status 1"},
		"shim hangs":                 {"shim", "create", "exec " + hang, codes.DeadlineExceeded, "did not answer within " + createTimeout.String()},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.on(t, c.verb, c.lines)
			_, err := run(c.handler)
			testbed.Refused(t, err, c.code, c.says)
			runtime.on(t, c.verb, "")
			testbed.Same(t, b.listed(t), "", "the states are")
			testbed.Same(t, pidOf(t, hang), 0, "the pid of the hanging command is")
			b.NothingLeft(t, atRest)
			id, err := run(c.handler)
			testbed.Mustf(t, err, "run the same sandbox again")
			ctx := testbed.Within(t, time.Minute)
			if _, err := b.Client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
				t.Error(err)
			}
			if _, err := b.Client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
				t.Error(err)
			}
		})
	}
	b.NothingLeft(t, atRest)
}
