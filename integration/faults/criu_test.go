package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// holder builds the program in ./holder and returns a volume with it.
func holder(t *testing.T) *runtimeapi.Mount {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, "holder"), "./holder")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build ./holder: %v\n%s", err, out)
	}
	return &runtimeapi.Mount{ContainerPath: "/holder", HostPath: dir, Readonly: true}
}

// restored creates a container of a checkpoint image in a new pod.
func (b *bed) restored(t *testing.T, image string, change func(*runtimeapi.ContainerConfig)) (*testbed.Pod, *testbed.Container) {
	t.Helper()
	pod, id, err := b.create(t, testbed.PodSpec{Image: image, Container: change})
	testbed.Mustf(t, err, "create")
	return pod, b.Client.Container(id, filepath.Join(pod.Config.GetLogDirectory(), "main", "0.log"))
}

// TestWhatProcessesHold: eventfds, timers, unlinked files, pipes, sockets, threads and System V
// memory of a process survive a restore; its TCP connections are closed.
func TestWhatProcessesHold(t *testing.T) {
	b := restoring(t, testbed.FittingCRIU(t), testbed.Options{})
	mount := holder(t)
	mounted := func(c *runtimeapi.ContainerConfig) { c.Mounts = []*runtimeapi.Mount{mount} }
	first := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"/holder/holder"}, Container: mounted})
	const held = "eventfd=7 timer=true unlinked=kept pipe=through socket=hello memory=shared connection="
	first.Container.WaitLog(t, held+"hello threads=true")
	image := b.imageOf(t, first.Container, "warm")
	first.Remove(t)
	pod, c := b.restored(t, image, mounted)
	c.Start(t)
	c.WaitLog(t, held+"closed threads=true")
	if line := c.Log(t)[0].Text; strings.HasPrefix(line, "tick 1 ") {
		t.Errorf("the restored program began anew: %q", line)
	}
	// A kubelet restarts a container in the same pod. System V memory outlives the processes.
	c.Stop(t, 0)
	pod.RunContainer(t, "again", testbed.PodSpec{Image: image, Container: mounted}).WaitLog(t, held+"closed threads=true")
}

// send attaches to a container, and writes the text to its standard input.
func (b *bed) send(t *testing.T, c *testbed.Container, tty bool, text string) {
	t.Helper()
	ctx := testbed.Within(t, time.Minute)
	r, err := b.Client.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: c.ID, Stdin: true, Stdout: true, Tty: tty})
	testbed.Must(t, err)
	at, err := url.Parse(r.GetUrl())
	testbed.Must(t, err)
	session, err := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, at)
	testbed.Must(t, err)
	in, write := io.Pipe()
	ctx, leave := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- session.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: io.Discard, Tty: tty})
	}()
	_, err = write.Write([]byte(text))
	testbed.Must(t, err)
	c.WaitLog(t, "got")
	leave()
	if err := <-ended; err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}

// TestRestoredInput: a restored container reads from its own terminal or standard input.
func TestRestoredInput(t *testing.T) {
	b := restoring(t, testbed.FittingCRIU(t), testbed.Options{})
	for _, tty := range []bool{false, true} {
		input := func(c *runtimeapi.ContainerConfig) { c.Stdin, c.Tty = true, tty }
		first := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", "echo ready; while read -r line; do echo got $line; done"}, Container: input})
		first.Container.WaitLog(t, "ready")
		image := b.imageOf(t, first.Container, "warm")
		first.Remove(t)
		pod, c := b.restored(t, image, input)
		c.Start(t)
		b.send(t, c, tty, "hello\n")
		c.WaitLog(t, "got hello")
		pod.Remove(t)
	}
}

// watched is a criu that writes its pid to a file in dir.
type watched struct{ dir string }

// watchCRIU starts berth with a watched criu.
func watchCRIU(t *testing.T) (*bed, *watched) {
	t.Helper()
	w := &watched{t.TempDir()}
	program := filepath.Join(t.TempDir(), "criu")
	script := fmt.Sprintf("#!/bin/sh\necho $$ > %[1]s/new.$$ && mv %[1]s/new.$$ %[1]s/pid.$$\nexec %[2]s \"$@\"\n", w.dir, testbed.FittingCRIU(t))
	testbed.Must(t, os.WriteFile(program, []byte(script), 0o755))
	return restoring(t, program, testbed.Options{}), w
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
	files, err := filepath.Glob(filepath.Join(w.dir, "pid.*"))
	testbed.Must(t, err)
	return files
}

// working waits for a CRIU process that writes or restores a container, and returns its pid. Other
// CRIU processes, which only print versions and features, exit at once. working returns 0 if done
// has a result before it sees such a process.
func (w *watched) working(t *testing.T, done <-chan error) int {
	t.Helper()
	pid := 0
	testbed.Eventually(t, time.Minute, func() error {
		for _, file := range w.files(t) {
			one, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(file), "pid."))
			testbed.Must(t, err)
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

// killWhile kills one of victims some time after CRIU began its work.
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
		kill = slices.Collect(maps.Values(b.supervisors(t)))
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

// written begins a checkpoint of a container; the channel receives its result.
func (b *bed) written(t *testing.T, c *testbed.Container, location string) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- b.checkpoint(t, c.ID, location, 15) }()
	return done
}

// TestKilledWhileCRIUWrites kills CRIU, the runtime or the supervisor during a checkpoint. No file
// of the failed checkpoint is left, the container does not stay frozen, and the next checkpoint
// succeeds. Processes into which CRIU had injected its code when it was killed may have died.
func TestKilledWhileCRIUWrites(t *testing.T) {
	b, w := watchCRIU(t)
	atRest := b.Rest(t)
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			for _, after := range moments {
				pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", counting}})
				grows(t, pod.Container)
				w.forget(t)
				locations := t.TempDir()
				done := b.written(t, pod.Container, filepath.Join(locations, "main.tar"))
				b.killWhile(t, w, victim, after, done)
				if err := <-done; err != nil {
					b.noUnfinished(t, locations)
				}
				if pod.Container.Status(t).GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
					grows(t, pod.Container)
					testbed.Checkf(t, <-b.written(t, pod.Container, filepath.Join(locations, "next.tar")), "killed after %v: the next checkpoint", after)
				}
				pod.Remove(t)
			}
		})
	}
	b.NothingLeft(t, atRest)
}

// TestKilledWhileCRIURestores kills CRIU, the runtime or the supervisor during a restore. The
// container has exited or runs, the pod can be removed, and its volume still has its files.
func TestKilledWhileCRIURestores(t *testing.T) {
	b, w := watchCRIU(t)
	volume := t.TempDir()
	precious := filepath.Join(volume, "a", "b", "c")
	testbed.Must(t, os.MkdirAll(filepath.Dir(precious), 0o700))
	testbed.Must(t, os.WriteFile(precious, []byte("precious"), 0o600))
	mounted := func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/volume", HostPath: volume}}
	}
	first := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", counting}, Container: mounted})
	goesOn(t, first.Container)
	image := b.imageOf(t, first.Container, "warm")
	first.Remove(t)
	atRest := b.Rest(t)
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			for _, after := range moments {
				// After two failed starts in a row berth runs a self-check pod, which must not be killed.
				b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}).Remove(t)
				pod, c := b.restored(t, image, mounted)
				w.forget(t)
				done := make(chan error, 1)
				go func() {
					_, err := b.Client.StartContainer(testbed.Within(t, time.Minute), &runtimeapi.StartContainerRequest{ContainerId: c.ID})
					done <- err
				}()
				b.killWhile(t, w, victim, after, done)
				err := <-done
				switch state := c.Status(t).GetState(); {
				case err == nil && state == runtimeapi.ContainerState_CONTAINER_RUNNING:
				case err != nil && state == runtimeapi.ContainerState_CONTAINER_EXITED:
				default:
					t.Errorf("killed after %v: the start returned %v, but the container is %v", after, err, state)
				}
				pod.Remove(t)
				if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
					t.Fatalf("killed after %v: the volume has lost its file: %q, %v", after, text, err)
				}
			}
		})
	}
	pod, c := b.restored(t, image, mounted)
	c.Start(t)
	goesOn(t, c)
	pod.Remove(t)
	b.NothingLeft(t, atRest)
}

// TestNetworkAfterAKilledCRIU: a checkpoint keeps the container's connections, for which CRIU locks
// the pod's network with firewall rules. berth removes those of a CRIU that was killed.
func TestNetworkAfterAKilledCRIU(t *testing.T) {
	b, w := watchCRIU(t)
	for _, after := range append([]time.Duration{5 * time.Millisecond, 10 * time.Millisecond, 40 * time.Millisecond, 90 * time.Millisecond}, moments...) {
		pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c",
			"while :; do nc -l -p 9000 >>/heard; done & while :; do { i=0; while :; do i=$((i+1)); echo $i || exit; sleep 0.1; done; } | nc 127.0.0.1 9000; sleep 0.1; done"}})
		testbed.Eventually(t, time.Minute, func() error {
			if heard := pod.Container.Exec(t, "cat", "/heard"); len(heard) < 10 {
				return fmt.Errorf("the server has received only %q", heard)
			}
			return nil
		})
		w.forget(t)
		done := b.written(t, pod.Container, filepath.Join(t.TempDir(), "main.tar"))
		b.killWhile(t, w, "criu", after, done)
		err := <-done
		if pod.Container.Status(t).GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
			out, rerr := exec.CommandContext(t.Context(), "nsenter", "--net", "--target", strconv.Itoa(b.info(t, pod.Container.ID).PID), "nft", "list", "ruleset").CombinedOutput()
			testbed.Mustf(t, rerr, "nft list ruleset: %s", out)
			if strings.Contains(string(out), "CRIU") {
				t.Errorf("killed after %v (the checkpoint returned %v): CRIU's rules are left: %s", after, err, out)
			}
		}
		pod.Remove(t)
	}
}
