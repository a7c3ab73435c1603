package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// shimConfig is a handler of containerd's runc shim, or of a stand-in at the path shim.
func shimConfig(t *testing.T, shim string) string {
	t.Helper()
	return fmt.Sprintf("default_runtime = \"shim\"\n[runtimes.shim]\nruntime_type = \"shim\"\nruntime_path = %q\ncontainer_create_timeout = \"10s\"\n[runtimes.shim.options]\nBinaryName = %q\n",
		shim, testbed.Part(t, testbed.Runc))
}

// family is a command whose first process ignores signals and has a child in a session
// of its own, which writes nothing.
var family = []string{"sh", "-c", "setsid sleep 3600 & trap '' TERM HUP PIPE; while :; do sleep 3600; done"}

// inCgroup returns the processes of a container.
func inCgroup(t *testing.T, pid int) []int {
	t.Helper()
	membership, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	testbed.Must(t, err)
	for line := range strings.Lines(string(membership)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		dir := filepath.Join("/sys/fs/cgroup", fields[1], fields[2])
		if fields[1] != "freezer" && fields[1] != "pids" && fields[0] != "0" {
			continue
		}
		if fields[2] == "/" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		var pids []int
		for word := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(word)
			testbed.Must(t, err)
			pids = append(pids, pid)
		}
		return pids
	}
	t.Fatalf("process %d has no cgroup below the root: %s", pid, membership)
	return nil
}

// alive returns whether a process runs. A zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	state := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[0]
	return state != "Z" && state != "X"
}

// shimsOf returns the pids of a sandbox's foreign shims.
func shimsOf(t *testing.T, sandbox string) []int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	testbed.Must(t, err)
	var found []int
	for _, path := range lines {
		line, _ := os.ReadFile(path)
		if !strings.Contains(string(line), "\x00-id\x00"+sandbox+"\x00") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && alive(pid) {
			found = append(found, pid)
		}
	}
	return found
}

func (b *bed) killShim(t *testing.T, sandbox string) {
	t.Helper()
	var pids []int
	testbed.Eventually(t, time.Minute, func() error { // a new child has the shim's command line for a moment
		if pids = shimsOf(t, sandbox); len(pids) != 1 {
			return fmt.Errorf("sandbox %s has shims %v", sandbox, pids)
		}
		return nil
	})
	killAs(t, pids[0], syscall.SIGKILL)
}

// TestForeignShimKilled kills the shim of a pod, once while the daemon runs and once
// while it is down. Without the shim the daemon must kill the containers, and may
// report them as exited only when their processes have exited.
func TestForeignShimKilled(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{Config: shimConfig(t, testbed.Part(t, testbed.RuncShim))})
	atRest := b.Rest(t)
	for name, kill := range map[string]func(t *testing.T, sandbox string){
		"daemon up": b.killShim,
		"daemon down": func(t *testing.T, sandbox string) {
			t.Helper()
			b.Kill9(t)
			b.killShim(t, sandbox)
			b.Start(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: family})
			second := pod.RunContainer(t, "second", testbed.PodSpec{Image: b.Image, Command: family})
			unstarted := pod.CreateContainer(t, "unstarted", testbed.PodSpec{Image: b.Image, Command: family})
			members := map[*testbed.Container][]int{}
			for _, c := range []*testbed.Container{pod.Container, second} {
				c.Exec(t, "sh", "-c", "until [ $(ps | grep -c 'sleep 3600') -ge 2 ]; do sleep 0.01; done")
				members[c] = inCgroup(t, b.info(t, c.ID).PID)
				if len(members[c]) < 3 {
					t.Fatalf("the processes of the container are %v, want at least 3", members[c])
				}
			}
			kill(t, pod.ID)
			for c, pids := range members {
				var st *runtimeapi.ContainerStatus
				testbed.Eventually(t, time.Minute, func() error {
					if st = c.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
						return fmt.Errorf("the container is %s", st.GetState())
					}
					return nil
				})
				for _, pid := range pids {
					if alive(pid) {
						t.Errorf("the container is EXITED, but its process %d still runs", pid)
					}
				}
				if st.GetExitCode() != 137 || st.GetReason() != "Error" || !strings.Contains(st.GetMessage(), "shim died") {
					t.Errorf("the container exited with %d %s %q, want 137 and the reason", st.GetExitCode(), st.GetReason(), st.GetMessage())
				}
			}
			pod.WaitNotReady(t)
			pod.Stop(t)
			testbed.Same(t, unstarted.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_EXITED, "the container that was not started is")
			pod.Remove(t)
			b.NothingLeft(t, atRest)
		})
	}
}

// standIn is a script that runs the real shim. Its start action can be replaced by
// lines of shell.
const standIn = `#!/bin/sh
for last; do :; done
if [ "$last" = start ] && [ -e %[1]q/start ]; then
	. %[1]q/start
	exit
fi
exec %[2]q "$@"
`

// newStandIn returns the path of a new standIn, and a function that sets its start action.
func newStandIn(t *testing.T) (path string, start func(lines string)) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "containerd-shim-runc-v2")
	body := fmt.Sprintf(standIn, dir, testbed.Part(t, testbed.RuncShim))
	put(t, path, []byte(body))
	return path, func(lines string) {
		t.Helper()
		file := filepath.Join(dir, "start")
		err := os.Remove(file)
		if lines != "" {
			err = os.WriteFile(file, []byte(lines+"\n"), 0o600)
		}
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// TestForeignShimHalfStarted has the start action of a shim fail, or the daemon die
// during it, before or after the shim has started. No shim may be left.
func TestForeignShimHalfStarted(t *testing.T) {
	t.Parallel()
	hang := hanging()
	path, start := newStandIn(t)
	b := newBed(t, testbed.Options{Config: shimConfig(t, path)})
	atRest := b.Rest(t)
	real := testbed.Part(t, testbed.RuncShim) + ` "$@"`
	dir := t.TempDir()
	started, killed := filepath.Join(dir, "started"), filepath.Join(dir, "killed")
	for name, c := range map[string]struct {
		start  string
		killed bool // the daemon is killed as soon as the file started exists
		says   string
	}{
		"fails with a running shim":          {start: real + "; echo 'after the start' >&2; exit 1", says: "after the start"},
		"fails with output":                  {start: "echo 'in the answer'; exit 1", says: "in the answer"},
		"hangs with a running shim":          {start: real + "; exec " + hang, says: "start"},
		"has no output":                      {start: "exit 0", says: "response"},
		"prints no address":                  {start: "echo nonsense", says: "nonsense"},
		"names a missing socket":             {start: "echo unix:///no/such/socket", says: "/no/such/socket"},
		"daemon dies after the shim's start": {start: real + "; touch " + started + "; sleep 2", killed: true},
		// The shim waits for a reader of its log before it answers calls. Here no reader exists.
		"daemon dies before the shim's start": {start: "touch " + started + "; until [ -e " + killed + " ]; do sleep 0.05; done; " + real, killed: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range []string{started, killed} {
				_ = os.Remove(file)
			}
			logged := len(b.Log())
			start(c.start)
			defer start("")
			done := make(chan error, 1)
			go func() {
				_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
				done <- err
			}()
			if c.killed {
				testbed.Eventually(t, time.Minute, func() error { _, err := os.Stat(started); return err })
				b.Kill9(t)
				place(t, dir, "killed")
			}
			if err := <-done; err == nil {
				t.Error("RunPodSandbox succeeded")
			} else if !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error does not have %q: %v", c.says, err)
			}
			if c.killed {
				b.Start(t)
			}
			// A sandbox whose rollback takes some seconds is listed as NOTREADY after a restart.
			if listed := b.listed(t); listed != "" && (!c.killed || listed != runtimeapi.PodSandboxState_SANDBOX_NOTREADY.String()) {
				t.Errorf("the states are %s", listed)
			}
			b.NothingLeft(t, atRest)
			if strings.Contains(b.Log()[logged:], "Killing shim that failed to stop its sandbox") {
				t.Error("the log has a shim that failed to stop its sandbox and was killed")
			}
		})
	}
}

// TestForeignShimKilledWithItsContainer stops a shim by SIGSTOP, and kills the first process of its
// container and then the shim. The exit code must be 137, as under containerd; it once was 255.
func TestForeignShimKilledWithItsContainer(t *testing.T) {
	t.Parallel()
	b := newBed(t, testbed.Options{Config: shimConfig(t, testbed.Part(t, testbed.RuncShim))})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: family})
	shim := shimsOf(t, pod.ID)
	if len(shim) != 1 {
		t.Fatalf("the pod has shims %v", shim)
	}
	killAs(t, shim[0], syscall.SIGSTOP)
	killAs(t, b.info(t, pod.Container.ID).PID, syscall.SIGKILL)
	killAs(t, shim[0], syscall.SIGKILL)
	if st := pod.Container.WaitExit(t); st.GetExitCode() != 137 || st.GetReason() != "Error" || !strings.Contains(st.GetMessage(), "its shim") {
		t.Errorf("the container exited with %d %s: %s, want 137", st.GetExitCode(), st.GetReason(), st.GetMessage())
	}
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}
