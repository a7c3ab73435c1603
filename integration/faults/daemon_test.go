package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestDaemonKilled kills the daemon while pods run, has containers exit while it is
// down, and compares the statuses before and after.
func TestDaemonKilled(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	// The containers watch this directory for files by which the test controls them
	// while the daemon is down.
	host := t.TempDir()
	shared := func(c *runtimeapi.ContainerConfig) {
		c.Mounts = []*runtimeapi.Mount{{ContainerPath: "/host", HostPath: host}}
	}
	const until = "until [ -e /host/%s ]; do sleep 0.05; done; %s"
	run := func(script string) *testbed.Pod {
		return b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", script}, Container: shared})
	}
	counting := run("i=0; until [ -e /host/end ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo last $i")
	seven := run(fmt.Sprintf(until, "away", "echo bye; exit 7"))
	zero := run(fmt.Sprintf(until, "away", "exit 0"))
	killed := run("sleep 3600")
	early := run("exit 3")
	early.Container.WaitExit(t)
	created := b.Client.RunSandbox(t, testbed.PodSpec{})
	unstarted := created.CreateContainer(t, "main", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	stopped := run("sleep 3600")
	stopped.Stop(t)

	pods := []*testbed.Pod{counting, seven, zero, killed, early, created, stopped}
	before := map[string]string{}
	for _, pod := range pods {
		before[pod.ID] = identity(t, pod)
	}
	killedPID := b.info(t, killed.Container.ID).PID

	b.Kill9(t)
	place(t, host, "away")
	testbed.Must(t, syscall.Kill(killedPID, syscall.SIGKILL))
	time.Sleep(time.Second) // the containers exit in this time
	watch := b.watchStart(t, len(pods))
	b.Start(t)
	watch.end(t)

	for _, pod := range pods {
		testbed.Same(t, identity(t, pod), before[pod.ID], "status of a pod before: %s\nafter:", before[pod.ID])
	}
	for _, end := range []struct {
		container *testbed.Container
		code      int32
		reason    string
	}{
		{seven.Container, 7, "Error"}, {zero.Container, 0, "Completed"}, {killed.Container, 137, "Error"}, {early.Container, 3, "Error"},
	} {
		st := end.container.WaitExit(t)
		if st.GetExitCode() != end.code || st.GetReason() != end.reason {
			t.Errorf("the container exited with %d %s %q, want %d %s", st.GetExitCode(), st.GetReason(), st.GetMessage(), end.code, end.reason)
		}
		if st.GetFinishedAt() < st.GetStartedAt() || st.GetStartedAt() < st.GetCreatedAt() {
			t.Errorf("the times are not in order: created %d, started %d, finished %d", st.GetCreatedAt(), st.GetStartedAt(), st.GetFinishedAt())
		}
	}
	seven.Container.WaitLog(t, "bye")
	testbed.Same(t, counting.Container.Exec(t, "echo", "still", "here"), "still here\n", "exec after the restart printed")
	unstarted.Start(t)
	unstarted.WaitState(t, runtimeapi.ContainerState_CONTAINER_RUNNING)
	unstarted.Stop(t, 0)

	place(t, host, "end")
	counting.Container.WaitExit(t)
	wholeLog(t, counting.Container)
	b.NothingLeft(t, atRest)
}

func place(t *testing.T, dir, name string) {
	t.Helper()
	testbed.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
}

// identity returns the fields of a pod's and its container's status that must not change.
func identity(t *testing.T, p *testbed.Pod) string {
	t.Helper()
	st := p.Status(t)
	text := fmt.Sprintf("sandbox %s %s ip=%q created=%d %v %q", st.GetId(), st.GetState(), st.GetNetwork().GetIp(), st.GetCreatedAt(), st.GetMetadata(), st.GetRuntimeHandler())
	if p.Container != nil {
		c := p.Container.Status(t)
		text += fmt.Sprintf(" container %s created=%d started=%d %v %s", c.GetId(), c.GetCreatedAt(), c.GetStartedAt(), c.GetMetadata(), c.GetLogPath())
	}
	return strings.Join(strings.Fields(text), " ") // protobuf's text format has random spaces
}

// startWatch counts the results of calls to a daemon that is starting.
type startWatch struct {
	stop     context.CancelFunc
	done     sync.WaitGroup
	some     chan struct{} // closed at the first complete list
	refused  int
	answered int
	wrong    []string
}

// watchStart lists sandboxes without a pause until end. Each call must be refused
// with Unavailable or return all sandboxes.
func (b *bed) watchStart(t *testing.T, want int) *startWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &startWatch{stop: cancel, some: make(chan struct{})}
	answered := sync.OnceFunc(func() { close(w.some) })
	begun := make(chan struct{})
	refused := sync.OnceFunc(func() { close(begun) })
	w.done.Go(func() {
		for ctx.Err() == nil {
			n, err := listOnce(ctx, b.Socket)
			switch {
			case ctx.Err() != nil:
			case err == nil && n == want:
				w.answered++
				answered()
			case err == nil:
				w.wrong = append(w.wrong, fmt.Sprintf("a list of %d sandboxes", n))
			case status.Code(err) == codes.Unavailable:
				w.refused++
				refused()
			default:
				w.wrong = append(w.wrong, err.Error())
			}
		}
	})
	select {
	case <-begun:
	case <-ctx.Done():
	}
	return w
}

// listOnce lists sandboxes on a new connection, which connects without a back-off.
func listOnce(ctx context.Context, socket string) (int, error) {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	list, err := runtimeapi.NewRuntimeServiceClient(connection).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	return len(list.GetItems()), err
}

func (w *startWatch) end(t *testing.T) {
	t.Helper()
	select {
	case <-w.some:
	case <-time.After(time.Minute):
	}
	w.stop()
	w.done.Wait()
	t.Logf("while the daemon started: %d calls refused, %d answered", w.refused, w.answered)
	if w.refused == 0 || w.answered == 0 {
		t.Errorf("%d calls were refused and %d answered; want some of both", w.refused, w.answered)
	}
	for _, wrong := range w.wrong {
		t.Errorf("while the daemon started, a call returned %s", wrong)
	}
}

// wholeLog fails the test unless the log has the lines from 1 to the number in its last line.
func wholeLog(t *testing.T, c *testbed.Container) {
	t.Helper()
	lines := c.Log(t)
	if len(lines) == 0 {
		t.Fatal("the log is empty")
	}
	for i, line := range lines[:len(lines)-1] {
		testbed.MustBe(t, line.Text, "line "+strconv.Itoa(i+1), "entry %d of the log is", i+1)
	}
	testbed.Same(t, lines[len(lines)-1].Text, "last "+strconv.Itoa(len(lines)-1), "the last entry is")
}
