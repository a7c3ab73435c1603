package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// binary returns the role (stable or candidate) and the path of a pod's runtime, from its verbose
// status.
func (b *bed) binary(t *testing.T, sandbox string) (binary, path string) {
	t.Helper()
	r, err := b.Client.PodSandboxStatus(testbed.Within(t, time.Minute), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox, Verbose: true})
	testbed.Must(t, err)
	var info struct {
		Binary     string
		Definition struct{ Path string }
	}
	testbed.Must(t, json.Unmarshal([]byte(r.GetInfo()["info"]), &info))
	return info.Binary, info.Definition.Path
}

// rollout returns the state of a handler's rollout from the verbose Status.
func (b *bed) rollout(t *testing.T, handler string) (state, reason string) {
	t.Helper()
	r, err := b.Client.Status(testbed.Within(t, time.Minute), &runtimeapi.StatusRequest{Verbose: true})
	testbed.Must(t, err)
	var info struct {
		Handlers []struct {
			Name    string
			Rollout struct{ State, Reason string }
		}
	}
	testbed.Must(t, json.Unmarshal([]byte(r.GetInfo()["handlers"]), &info))
	for _, h := range info.Handlers {
		if h.Name == handler {
			return h.Rollout.State, h.Rollout.Reason
		}
	}
	t.Fatalf("Status does not have handler %s", handler)
	return "", ""
}

// TestRollout rolls out a second path of runc, and then a program that answers probes
// but does not run containers. berth must abort the second rollout, also after a restart.
func TestRollout(t *testing.T) {
	t.Parallel()
	runc := testbed.Part(t, testbed.Runc)
	dir := t.TempDir()
	next := filepath.Join(dir, "runc")
	testbed.Must(t, os.Symlink(runc, next))
	config := func(path string) string {
		return fmt.Sprintf("default_runtime = \"runc\"\n[handlers]\nprobe_interval = \"1s\"\n[runtimes.runc]\nruntime_path = %q\ncandidate = { runtime_path = %q, percent = 50 }\n", runc, path)
	}
	b := newBed(t, testbed.Options{Config: config(next)})
	atRest := b.Rest(t)
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}}
	ran := map[string]int{}
	var kept *testbed.Pod
	for range 16 {
		pod := b.Client.RunPod(t, spec)
		binary, path := b.binary(t, pod.ID)
		ran[binary+" "+path]++
		if binary == "candidate" && kept == nil {
			kept = pod
			continue
		}
		pod.Remove(t)
	}
	if len(ran) != 2 || ran["stable "+runc] == 0 || ran["candidate "+next] == 0 {
		t.Fatalf("pods ran on %v, want both stable and candidate", ran)
	}

	// Failures that are not the runtime's do not abort a rollout.
	sandbox := b.Client.SandboxConfig("")
	for tried := 0; tried < 4; {
		r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
		testbed.Must(t, err)
		c := b.Client.ContainerConfig("lacking", b.Image, "/no/such/program")
		made, err := b.Client.CreateContainer(testbed.Within(t, time.Minute), &runtimeapi.CreateContainerRequest{PodSandboxId: r.GetPodSandboxId(), Config: c, SandboxConfig: sandbox})
		if err == nil {
			_, err = b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()})
		}
		if err == nil {
			t.Fatal("a container started with a program that does not exist")
		}
		if binary, _ := b.binary(t, r.GetPodSandboxId()); binary == "candidate" {
			tried++
		}
		sandbox = b.Client.SandboxConfig("")
	}
	if state, reason := b.rollout(t, "runc"); state != "running" {
		t.Errorf("after starts that failed for a missing program, the rollout is %s: %s", state, reason)
	}

	liar := filepath.Join(dir, "liar")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in --version|features) exec %s \"$@\" ;; esac\necho 'it cannot be done' >&2\nexit 1\n", runc)
	put(t, liar, []byte(script))
	testbed.Must(t, os.WriteFile(filepath.Join(b.Dir, "conf.d", "50-test.toml"), []byte(config(liar)), 0o600))
	b.endRollout(t, runc, liar)
	for _, restart := range []bool{false, true} {
		if restart {
			b.Restart(t)
		}
		for range 8 {
			pod := b.Client.RunPod(t, spec)
			if binary, path := b.binary(t, pod.ID); binary != "stable" || path != runc {
				t.Errorf("after the aborted rollout (daemon restarted: %v) a pod runs on %s (%s)", restart, path, binary)
			}
			pod.Remove(t)
		}
	}
	// Another program at that path begins another rollout, which is aborted too.
	put(t, liar+".new", []byte(script+"# another\n"))
	testbed.Must(t, os.Rename(liar+".new", liar))
	testbed.Eventually(t, time.Minute, func() error {
		if state, reason := b.rollout(t, "runc"); state != "running" {
			return fmt.Errorf("the rollout of another program is %s: %s", state, reason)
		}
		return nil
	})
	b.endRollout(t, runc, liar)

	// A pod keeps the binary with which it was created.
	if binary, path := b.binary(t, kept.ID); binary != "candidate" || path != next {
		t.Errorf("the pod of the first rollout runs on %s (%s)", path, binary)
	}
	kept.Container.Exec(t, "true")
	b.NothingLeft(t, atRest)
}

// endRollout runs pods until the rollout is aborted. Pods on the liar fail, others must start.
func (b *bed) endRollout(t *testing.T, runc, liar string) {
	t.Helper()
	failed := 0
	testbed.Eventually(t, time.Minute, func() error {
		sandbox := b.Client.SandboxConfig("")
		r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: sandbox})
		testbed.Must(t, err)
		id, err := b.tryCreate(t, r.GetPodSandboxId(), sandbox)
		if err == nil {
			_, err = b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: id})
		}
		binary, path := b.binary(t, r.GetPodSandboxId())
		if wrong := binary == "candidate" && path == liar; wrong != (err != nil) {
			t.Fatalf("the start of a pod on %s (%s) returned %v", path, binary, err)
		} else if wrong {
			failed++
		}
		if state, _ := b.rollout(t, "runc"); state != "aborted" {
			return fmt.Errorf("the rollout is %s after %d failures", state, failed)
		}
		return nil
	})
	_, reason := b.rollout(t, "runc")
	if failed < 2 || !strings.Contains(reason, "failed to start") {
		t.Errorf("the rollout was aborted after %d failures: %s", failed, reason)
	}
}
