package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestUnresponsiveSupervisors starts the daemon while two supervisors with many
// containers are stopped by SIGSTOP. The start may wait only once, not for each
// container, and the containers run on.
func TestUnresponsiveSupervisors(t *testing.T) {
	const each = 9
	b := newBed(t, testbed.Options{Config: "[engine]\nsupervision = \"pod\"\n"})
	atRest := b.Rest(t)
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}
	var containers []*testbed.Container
	var stopped []int
	for range 2 {
		pod := b.Client.RunPod(t, spec)
		containers = append(containers, pod.Container)
		for n := range each - 1 {
			containers = append(containers, pod.RunContainer(t, fmt.Sprint("more-", n), spec))
		}
		stopped = append(stopped, b.supervisors(t)[b.info(t, pod.Container.ID).Supervisor])
	}
	healthy := b.Client.RunPod(t, spec)
	lives := map[string]string{}
	for _, c := range containers {
		lives[c.ID] = life(t, b.info(t, c.ID).PID)
	}
	healthyPID := b.info(t, healthy.Container.ID).PID

	b.Kill9(t)
	for _, pid := range stopped {
		killAs(t, pid, syscall.SIGSTOP)
	}
	killAs(t, healthyPID, syscall.SIGKILL)
	began := time.Now()
	b.Start(t)
	took := time.Since(began)
	t.Logf("with two unresponsive supervisors the start took %v", took.Round(time.Millisecond))
	if limit := 10 * time.Second; took > limit {
		t.Errorf("the start took %v, more than %v", took, limit)
	}
	for _, c := range containers {
		testbed.Same(t, c.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "container %s is", c.ID)
	}
	exitedWith(t, healthy.Container.Status(t), 137)

	for _, pid := range stopped {
		killAs(t, pid, syscall.SIGCONT)
	}
	for _, c := range containers {
		testbed.Same(t, life(t, b.info(t, c.ID).PID), lives[c.ID], "container %s was process %s and is", c.ID, lives[c.ID])
	}
	last := containers[len(containers)-1]
	testbed.Same(t, last.Exec(t, "echo", "alive"), "alive\n", "exec printed")
	last.Stop(t, 0)
	if st := last.WaitExit(t); st.GetExitCode() != 137 {
		t.Errorf("the container exited with %d %s, want 137", st.GetExitCode(), st.GetReason())
	}
	b.NothingLeft(t, atRest)
}

// heldPlugin is a CNI plugin that hangs while a file exists, and writes a note per
// command and pod. DEL takes at least 4 s, ADD fails.
const heldPlugin = `#!/bin/sh
dir="DIR"
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'; exit ;;
esac
touch "$dir/$CNI_COMMAND-$CNI_CONTAINERID"
if [ "$CNI_COMMAND" = DEL ]; then sleep 4; fi
while [ -e "$dir/hold-$CNI_COMMAND" ]; do sleep 0.05; done
[ "$CNI_COMMAND" != ADD ]
`

// TestPartialPodsAreUndoneTogether kills the daemon while the network of several pods
// is set up, and starts the next one with a plugin whose DEL is slow or hangs. It must
// roll the pods back in parallel, and its start must not wait for all of them.
func TestPartialPodsAreUndoneTogether(t *testing.T) {
	const pods = 8
	dir := t.TempDir()
	b := newBed(t, testbed.Options{CNI: testbed.NewCNI(t), Config: plugin(t, dir, "held", heldPlugin)})
	atRest := b.Rest(t)
	hold := func(command string, yes bool) {
		t.Helper()
		path := filepath.Join(dir, "hold-"+command)
		err := os.Remove(path)
		if yes {
			err = os.WriteFile(path, nil, 0o600)
		}
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { hold("ADD", false); hold("DEL", false) })
	leavePartial := func() {
		t.Helper()
		addPlugin(t, b.CNI, "held")
		b.Restart(t) // so that the daemon has read the new CNI configuration
		for _, note := range notes(t, dir, "*") {
			testbed.Must(t, os.Remove(note))
		}
		hold("ADD", true)
		var calls sync.WaitGroup
		for range pods {
			config := b.Client.SandboxConfig("")
			calls.Go(func() {
				_, _ = b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config})
			})
		}
		testbed.Eventually(t, time.Minute, func() error {
			if n := len(notes(t, dir, "ADD")); n < pods {
				return fmt.Errorf("ADD was called for %d of %d pods", n, pods)
			}
			return nil
		})
		b.Kill9(t)
		calls.Wait()
		hold("ADD", false)
	}

	t.Run("slow DEL", func(t *testing.T) {
		leavePartial()
		began := time.Now()
		b.Start(t)
		took := time.Since(began)
		t.Logf("with %d partial pods whose DEL takes 4 s the start took %v", pods, took.Round(time.Millisecond))
		if limit := 20 * time.Second; took > limit {
			t.Errorf("the start took %v, more than %v", took, limit)
		}
		// In sequence the DEL calls would take half a minute.
		testbed.Eventually(t, 15*time.Second, func() error {
			if n := len(notes(t, dir, "DEL")); n != pods {
				return fmt.Errorf("DEL was called for %d of %d pods", n, pods)
			}
			return nil
		})
		// On a busy machine the rollback may last longer than the start waits for it.
		if listed := b.listed(t); strings.ReplaceAll(listed, "SANDBOX_NOTREADY", "") != strings.Repeat(" ", strings.Count(listed, " ")) {
			t.Errorf("the states are %q, want only SANDBOX_NOTREADY", listed)
		}
	})
	testbed.Must(t, b.Client.RemoveAllPods(testbed.Within(t, time.Minute)))

	t.Run("hanging DEL", func(t *testing.T) {
		leavePartial()
		hold("DEL", true)
		began := time.Now()
		b.Start(t)
		took := time.Since(began)
		t.Logf("with %d partial pods whose DEL hangs the start took %v", pods, took.Round(time.Millisecond))
		if limit := 20 * time.Second; took > limit {
			t.Errorf("the start took %v, more than %v", took, limit)
		}
		testbed.Same(t, b.listed(t), strings.TrimSpace(strings.Repeat("SANDBOX_NOTREADY ", pods)), "the states are")
		// The start of a new pod does not wait for the rollback.
		testbed.Must(t, b.CNI.Write())
		testbed.Eventually(t, time.Minute, func() error {
			_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
			return err
		})
		hold("DEL", false)
	})
	testbed.Must(t, b.CNI.Write())
	b.NothingLeft(t, atRest)
}

// notes returns the notes that heldPlugin wrote for a command, one per pod.
func notes(t *testing.T, dir, command string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, command+"-*"))
	testbed.Must(t, err)
	return found
}

// addPlugin appends a plugin to the list of a network's CNI configuration.
func addPlugin(t *testing.T, cni *testbed.CNI, plugin string) {
	t.Helper()
	testbed.Must(t, cni.Write())
	text, err := os.ReadFile(cni.Path())
	testbed.Must(t, err)
	var list map[string]any
	testbed.Must(t, json.Unmarshal(text, &list))
	list["plugins"] = append(list["plugins"].([]any), map[string]any{"type": plugin})
	if text, err = json.Marshal(list); err != nil {
		t.Fatal(err)
	}
	testbed.Must(t, os.WriteFile(cni.Path(), text, 0o600))
}

// TestUnreadableSandbox damages the record of a pod while the daemon is down. A regression test:
// the container was once reported as exited but ran on, under a supervisor without pods.
func TestUnreadableSandbox(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: family})
	info := b.info(t, pod.Container.ID)
	inside := inCgroup(t, info.PID)
	b.Kill9(t)
	testbed.Must(t, os.WriteFile(filepath.Join(b.Root, "records", "sandboxes", pod.ID, "spec.json"), []byte("{"), 0o600))
	b.Start(t)
	testbed.Same(t, pod.Container.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_EXITED, "the container is")
	for _, pid := range inside {
		if alive(pid) {
			t.Errorf("process %d of the exited container still runs", pid)
		}
	}
	testbed.Eventually(t, time.Minute, func() error {
		if pid := b.supervisors(t)[info.Supervisor]; pid > 0 {
			return fmt.Errorf("supervisor %d still runs without pods", pid)
		}
		return nil
	})
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}
