package podcheckpoint

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// watched is a criu that writes its pid to a file in dir.
type watched struct{ dir string }

// watchCRIU restarts berth with a watched criu.
func (b *bed) watchCRIU(t *testing.T) *watched {
	t.Helper()
	w := &watched{t.TempDir()}
	script := fmt.Sprintf("#!/bin/sh\necho $$ > %[1]s/new.$$ && mv %[1]s/new.$$ %[1]s/pid.$$\nexec %[2]s \"$@\"\n", w.dir, testbed.FittingCRIU(t))
	testbed.Must(t, os.WriteFile(filepath.Join(w.dir, "criu"), []byte(script), 0o755))
	b.path = []string{"PATH=" + w.dir + ":" + os.Getenv("PATH")}
	b.environment()
	b.Restart(t)
	return w
}

// forget removes the pid files of the criu processes that were started so far.
func (w *watched) forget(t *testing.T) {
	t.Helper()
	for _, file := range w.files(t) {
		testbed.Must(t, os.Remove(file))
	}
}

func (w *watched) files(t *testing.T) []string {
	t.Helper()
	files := value(filepath.Glob(filepath.Join(w.dir, "pid.*")))(t)
	return files
}

// working waits for a CRIU process that writes or restores a container, and returns its pid. Other
// CRIU processes, which only print versions and features, exit at once. working returns 0 if done
// has a result before it sees such a process.
func (w *watched) working(t *testing.T, done <-chan error) int {
	t.Helper()
	pid := 0
	testbed.Eventually(t, patience, func() error {
		for _, file := range w.files(t) {
			one := value(strconv.Atoi(strings.TrimPrefix(filepath.Base(file), "pid.")))(t)
			// The work has begun once CRIU has opened its log.
			fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", one)) // the process may have exited
			for _, fd := range fds {
				if to, err := os.Readlink(fd); err == nil && (strings.HasSuffix(to, "dump.log") || strings.HasSuffix(to, "restore.log")) {
					pid = one
					return nil
				}
			}
		}
		if len(done) > 0 {
			return nil
		}
		return errors.New("CRIU was not started")
	})
	return pid
}

// parentOf returns the pid of a process's parent, or 0 if the process has exited.
func parentOf(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// victims are the processes that killWhile can kill.
var victims = []string{"criu", "runtime", "supervisor"}

// killWhile kills one of victims some time after CRIU began its work. With any other text as the
// victim, killWhile only waits for that time.
func (b *bed) killWhile(t *testing.T, w *watched, victim string, after time.Duration, done <-chan error) {
	t.Helper()
	pid := w.working(t, done)
	if pid == 0 {
		return // the call has finished
	}
	var kill []int
	switch victim {
	case "criu":
		kill = []int{pid}
	case "runtime":
		kill = []int{parentOf(pid)}
	case "supervisor":
		kill = b.supervisors(t)
	}
	time.Sleep(after)
	for _, one := range kill {
		if one > 1 {
			_ = unix.Kill(one, unix.SIGKILL) // it may have exited
		}
	}
}

// moments are the times between the start of CRIU's work and the kill.
var moments = []time.Duration{0, 20 * time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond}

// TestKilledWhileCRIUWrites kills CRIU, the runtime or the supervisor during a checkpoint. No file
// of the failed checkpoint is left, no container stays frozen, and the next checkpoint succeeds.
// Processes into which CRIU had injected its code when it was killed may have died.
func TestKilledWhileCRIUWrites(t *testing.T) { bySupervisor(t, killedWhileCRIUWrites) }

func killedWhileCRIUWrites(t *testing.T, handler string) {
	b := newBed(t, handler, testbed.Options{})
	w := b.watchCRIU(t)
	atRest := b.Rest(t)
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			for _, after := range moments {
				p := b.run(t, "one", "two")
				p.reaches(t, 1)
				w.forget(t)
				dir := t.TempDir()
				testbed.Must(t, os.Chmod(dir, 0o700))
				done := make(chan error, 1)
				ids := []string{p.members[0].ID, p.members[1].ID}
				go func() {
					_, err := b.Client.CheckpointPod(testbed.Within(t, 15*time.Second), &runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: dir, ContainerIds: ids})
					done <- err
				}()
				b.killWhile(t, w, victim, after, done)
				if err := <-done; err != nil {
					nothingIn(t, dir)
				}
				died := slices.ContainsFunc(p.members, func(m *member) bool {
					return m.Status(t).GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING
				})
				if !died {
					p.reaches(t, max(p.members[0].count(t), p.members[1].count(t))+2)
					b.restored(t, p, p.checkpointed(t)).reaches(t, 2)
				}
				testbed.Must(t, b.Client.RemoveAllPods(t.Context()))
			}
		})
	}
	b.NothingLeft(t, atRest)
}

// TestKilledWhileCRIURestores kills CRIU, the runtime or the supervisor during a restore. The
// container has exited or runs, the pod can be removed, and its volume still has its files.
func TestKilledWhileCRIURestores(t *testing.T) { bySupervisor(t, killedWhileCRIURestores) }

func killedWhileCRIURestores(t *testing.T, handler string) {
	b := newBed(t, handler, testbed.Options{})
	w := b.watchCRIU(t)
	volume := t.TempDir()
	testbed.Must(t, os.MkdirAll(filepath.Join(volume, "a/b"), 0o700))
	testbed.Must(t, os.WriteFile(filepath.Join(volume, "a/b/c"), []byte("precious"), 0o600))
	p := b.empty(t)
	b.add(t, p, "main", func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/volume", HostPath: volume}}
	}, program("main")...)
	p.reaches(t, 2)
	dir := p.checkpointed(t)
	p.Remove(t)
	atRest := b.Rest(t)
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			for _, after := range moments {
				made := b.created(t, p, b.request(p, dir))
				w.forget(t)
				done := make(chan error, 1)
				go func() { done <- b.tryStart(t, made.members[0]) }()
				b.killWhile(t, w, victim, after, done)
				err := <-done
				switch state := made.members[0].Status(t).GetState(); {
				case err == nil && state == runtimeapi.ContainerState_CONTAINER_RUNNING:
				case err != nil && state == runtimeapi.ContainerState_CONTAINER_EXITED:
				default:
					t.Errorf("killed after %v: the start returned %v, but the container is %v", after, err, state)
				}
				made.Remove(t)
				if text, err := os.ReadFile(filepath.Join(volume, "a/b/c")); err != nil || string(text) != "precious" {
					t.Fatalf("killed after %v: the volume has lost its file: %q, %v", after, text, err)
				}
			}
		})
	}
	b.restored(t, p, dir).reaches(t, 2)
	testbed.Must(t, b.Client.RemoveAllPods(t.Context()))
	b.NothingLeft(t, atRest)
}

// TestNetworkAfterAKilledCRIU: a checkpoint of a container keeps its connections, for which CRIU
// locks the pod's network with firewall rules. berth removes those of a CRIU that was killed.
func TestNetworkAfterAKilledCRIU(t *testing.T) {
	testbed.FittingCRIU(t)
	b := newBed(t, runc, testbed.Options{})
	w := b.watchCRIU(t)
	for _, after := range append([]time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond, 90 * time.Millisecond}, moments...) {
		p := b.empty(t)
		m := b.add(t, p, "main", nil, "sh", "-c",
			"while :; do nc -l -p 9000 >>/heard; done & while :; do { i=0; while :; do i=$((i+1)); echo $i || exit; sleep 0.1; done; } | nc 127.0.0.1 9000; sleep 0.1; done")
		testbed.Eventually(t, patience, func() error {
			if heard := m.Exec(t, "cat", "/heard"); len(heard) < 10 {
				return fmt.Errorf("the server has received only %q", heard)
			}
			return nil
		})
		w.forget(t)
		done := make(chan error, 1)
		go func() {
			_, err := b.Client.CheckpointContainer(testbed.Within(t, 15*time.Second), &runtimeapi.CheckpointContainerRequest{
				ContainerId: m.ID, Location: filepath.Join(t.TempDir(), "main.tar"), Timeout: 15,
			})
			done <- err
		}()
		b.killWhile(t, w, "criu", after, done)
		err := <-done
		if m.Status(t).GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			if rules := b.rules(t); strings.Contains(rules, "CRIU") {
				t.Errorf("killed after %v (the checkpoint returned %v): CRIU's rules are left: %s", after, err, rules)
			}
		}
		p.Remove(t)
	}
}

// rules returns the firewall rules in the network of the only pod.
func (b *bed) rules(t *testing.T) string {
	t.Helper()
	for _, supervisor := range b.supervisors(t) {
		text := value(os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", supervisor)))(t)
		for _, pid := range strings.Fields(string(text)) {
			out, err := exec.CommandContext(t.Context(), "nsenter", "--net", "--target", pid, "nft", "list", "ruleset").CombinedOutput()
			if err != nil {
				t.Fatalf("nft list ruleset: %v: %s", err, out)
			}
			return string(out)
		}
	}
	t.Fatal("no container runs")
	return ""
}
