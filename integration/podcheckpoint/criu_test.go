package podcheckpoint

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
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

// add runs one more container in a pod.
func (b *bed) add(t *testing.T, p *pod, name string, change func(*runtimeapi.ContainerConfig), command ...string) *member {
	t.Helper()
	m := &member{}
	m.Container = p.RunContainer(t, name, testbed.PodSpec{Image: b.Image, Command: command, Container: func(c *runtimeapi.ContainerConfig) {
		if change != nil {
			change(c)
		}
		m.config = proto.CloneOf(c)
	}})
	p.members = append(p.members, m)
	return m
}

// empty runs a pod without containers.
func (b *bed) empty(t *testing.T) *pod {
	t.Helper()
	b.Client.Pull(t, b.handler, b.Image)
	return &pod{Pod: b.Client.RunSandbox(t, testbed.PodSpec{Handler: b.handler})}
}

// TestWhatProcessesHold: eventfds, timers, unlinked files, pipes, sockets and threads of a process
// survive a restore; its TCP connections are closed.
func TestWhatProcessesHold(t *testing.T) {
	byCRIU(t, func(t *testing.T, handler string) {
		b := newBed(t, handler, testbed.Options{})
		p := b.empty(t)
		mount := holder(t)
		m := b.add(t, p, "main", func(c *runtimeapi.ContainerConfig) { c.Mounts = []*runtimeapi.Mount{mount} }, "/holder/holder")
		const held = "eventfd=7 timer=true unlinked=kept pipe=through socket=hello connection="
		m.WaitLog(t, held+"hello threads=true")
		dir := p.checkpointed(t)
		ticks := len(m.Log(t))
		m.WaitLog(t, "tick "+strconv.Itoa(ticks+3)+" "+held+"hello") // the pod itself is not disturbed
		p.Remove(t)
		again := b.restored(t, p, dir)
		again.members[0].WaitLog(t, held+"closed threads=true")
		if first := again.members[0].Log(t)[0].Text; strings.HasPrefix(first, "tick 1 ") {
			t.Errorf("the restored program began anew: %q", first)
		}
	})
}

// TestNamespacesOfARestoredPod: restored containers share the namespaces of their new pod and its
// /dev/shm, which has the files of the checkpointed pod.
func TestNamespacesOfARestoredPod(t *testing.T) {
	byCRIU(t, func(t *testing.T, handler string) {
		b := newBed(t, handler, testbed.Options{})
		p := b.empty(t)
		one := b.add(t, p, "one", nil, "sh", "-c", "echo before >/dev/shm/note; echo written; while :; do sleep 0.2; done")
		b.add(t, p, "two", nil, "sh", "-c", "while :; do sleep 0.2; done")
		one.WaitLog(t, "written")
		dir := p.checkpointed(t)
		r := b.request(p, dir)
		r.Config.Hostname = "another"
		again := b.created(t, p, r)
		containers := again.members
		for _, c := range containers {
			c.Start(t)
		}
		if got := containers[0].Exec(t, "sh", "-c", "hostname; cat /dev/shm/note; echo after >/dev/shm/note"); got != "another\nbefore\n" {
			t.Errorf("the first container reads %q", got)
		}
		if got := containers[1].Exec(t, "cat", "/dev/shm/note"); got != "after\n" {
			t.Errorf("the second container reads %q", got)
		}
		for _, kind := range []string{"uts", "ipc", "net"} {
			if a, c := containers[0].Exec(t, "readlink", "/proc/1/ns/"+kind), containers[1].Exec(t, "readlink", "/proc/1/ns/"+kind); a != c {
				t.Errorf("the containers have different %s namespaces: %s and %s", kind, a, c)
			}
		}
		if got := one.Exec(t, "cat", "/dev/shm/note"); got != "before\n" {
			t.Errorf("the checkpointed pod reads %q", got)
		}
		again.Remove(t)
	})
}

// TestPodsThatCRIUCannotWrite: the checkpoint is refused with the reason, and the pod runs on.
func TestPodsThatCRIUCannotWrite(t *testing.T) {
	byCRIU(t, func(t *testing.T, handler string) {
		b := newBed(t, handler, testbed.Options{})
		mount := holder(t)
		withHolder := func(c *runtimeapi.ContainerConfig) { c.Mounts = []*runtimeapi.Mount{mount} }
		refused := func(p *pod, code codes.Code, says ...string) {
			t.Helper()
			dir := t.TempDir()
			testbed.Refused(t, p.TryCheckpoint(t, dir, p.containers()...), code, says...)
			if left := files(t, dir); len(left) > 0 {
				t.Errorf("the refused checkpoint left %q", left)
			}
			if got := p.members[0].Exec(t, "echo", "there"); got != "there\n" {
				t.Errorf("exec after the refused checkpoint prints %q", got)
			}
		}
		b.Client.Pull(t, handler, b.Image)
		options := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}
		shared := &pod{Pod: b.Client.RunSandbox(t, testbed.PodSpec{Handler: handler, Sandbox: func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions = options
		}})}
		b.add(t, shared, "main", func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions = options
		}, "sleep", "3600")
		refused(shared, codes.FailedPrecondition, `container "main"`, "shares PIDs")

		sysv := b.empty(t)
		b.add(t, sysv, "one", withHolder, "/holder/holder", "sysv").WaitLog(t, "tick 1")
		alone := sysv.checkpointed(t)
		b.restored(t, sysv, alone).members[0].WaitLog(t, "connection=closed")
		b.add(t, sysv, "two", nil, "sleep", "3600")
		refused(sysv, codes.FailedPrecondition, "System V", "ipcrm")

		p := b.run(t, "one")
		dir := t.TempDir()
		_, err := b.Client.CheckpointPod(testbed.Within(t, patience), &runtimeapi.CheckpointPodRequest{
			PodSandboxId: p.ID, OutputPath: dir, ContainerIds: []string{p.members[0].ID}, Options: map[string]string{"compression": "flate-best-speed"},
		})
		testbed.Refused(t, err, codes.InvalidArgument, "compression", `must be "none"`)
	})
}

// send attaches to the container, and writes the text to its standard input.
func (b *bed) send(t *testing.T, m *member, text string) {
	t.Helper()
	ctx := testbed.Within(t, patience)
	r := value(b.Client.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: m.ID, Stdin: true, Stdout: true, Tty: m.config.GetTty()}))(t)
	at := value(url.Parse(r.GetUrl()))(t)
	session := value(remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, at))(t)
	in, write := io.Pipe()
	ctx, leave := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- session.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: io.Discard, Tty: m.config.GetTty()})
	}()
	if _, err := write.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	m.WaitLog(t, "got")
	leave()
	if err := <-ended; err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}

// TestTerminalAndInput: a restored container reads from its own terminal or standard input.
func TestTerminalAndInput(t *testing.T) {
	byCRIU(t, func(t *testing.T, handler string) {
		b := newBed(t, handler, testbed.Options{})
		p := b.empty(t)
		const script = "while read -r line; do echo got $line; done"
		b.add(t, p, "tty", func(c *runtimeapi.ContainerConfig) { c.Tty, c.Stdin = true, true }, "sh", "-c", "echo ready; "+script)
		b.add(t, p, "plain", func(c *runtimeapi.ContainerConfig) { c.Stdin = true }, "sh", "-c", "echo ready; "+script)
		for _, m := range p.members {
			m.WaitLog(t, "ready")
		}
		dir := p.checkpointed(t)
		p.Remove(t)
		again := b.restored(t, p, dir)
		for _, m := range again.members {
			b.send(t, m, "hello\n")
			m.WaitLog(t, "got hello")
		}
	})
}
