package task

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
)

func TestExitOfACleanedUpTask(t *testing.T) {
	now, then := time.Now(), time.Now().Add(-time.Minute)
	for name, tc := range map[string]struct {
		death         shim.TaskExit
		wasAlive, oom bool
		want          pod.Exit
	}{
		"alive until the clean-up": {shim.TaskExit{Status: 137, At: now}, true, false, pod.Exit{Status: 137, At: now, Why: "the container was killed because its shim died"}},
		"exit seen by the shim":    {shim.TaskExit{Status: 3, At: then}, false, false, pod.Exit{Status: 3, At: then}},
		"exit not seen": {shim.TaskExit{Status: 137, At: then}, false, true,
			pod.Exit{Status: 137, At: now, OOM: true, Why: "its shim died before it reported how the container exited"}},
		"the shim's binary is gone": {shim.TaskExit{}, false, true,
			pod.Exit{Status: 255, At: now, OOM: true, Unknown: true}},
	} {
		if got := (leftovers{}).exit(tc.death, tc.wasAlive, tc.oom, now); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

// in starts a process in a new cgroup. The end of the test kills it and removes the cgroup.
func in(t *testing.T, cgroupsPath string) *exec.Cmd {
	t.Helper()
	group := cgroup.HostPaths(cgroupsPath)
	dir := group.Dir("freezer")
	test.Must(t, os.MkdirAll(dir, 0o755))
	t.Cleanup(func() { test.Check(t, group.Remove(context.Background())) })
	cmd := exec.Command("sleep", "3600")
	test.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // if the test has not killed it
		_ = cmd.Wait()
	})
	test.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600))
	return cmd
}

// Containers in the PID namespace of the sandbox process are killed by the kernel with that
// process. Their exits are attributed to the shim's death.
func TestCleanUpKillsAPodAtOnce(t *testing.T) {
	r, _ := deadShim(t, shim.ErrGone)
	parent := "/berth-test-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() { test.Check(t, cgroup.HostPaths(parent).Remove(context.Background())) })
	var ids []string
	var processes []*exec.Cmd
	for range 3 {
		id := pod.NewID()
		spec := pod.ContainerSpec{Sandbox: r.sandbox.ID(), CgroupsPath: filepath.Join(parent, id)}
		cmd := in(t, spec.CgroupsPath)
		test.Must(t, test.Err(r.pods.Containers.Create(id, spec, pod.ContainerStatus{Phase: pod.PhaseRunning, PID: cmd.Process.Pid}, store.Relaxed)))
		ids, processes = append(ids, id), append(processes, cmd)
	}
	// The third container exited by itself before; its exit was not recorded.
	kill(t, processes[2])
	for i, id := range ids {
		if i == 1 {
			kill(t, processes[i])
		}
		exit, err := r.cleanUp(t.Context(), id, shim.ErrGone)
		if lost := i == 2; err != nil || exit.Unknown != lost || (exit.Status == 137) == lost {
			t.Errorf("container %d: %+v, %v", i, exit, err)
		}
	}
}

// kill kills a process, and returns when it has ended.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	test.Must(t, cmd.Process.Kill())
	_ = cmd.Wait() // the error reports that the process was killed
}
