package remote

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// signal sends a signal to a daemon's process only.
func signal(t *testing.T, d *testbed.Daemon, s syscall.Signal) {
	t.Helper()
	testbed.Must(t, syscall.Kill(d.PID(), s))
}

// listed returns the IDs of all sandboxes and containers. It fails if one is listed twice, if a
// container is listed without its sandbox, or if the lists take long, as they must not when a
// daemon is stopped or killed.
func listed(t *testing.T, c *testbed.Client) (map[string]bool, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), tryTimeout)
	defer cancel()
	begin := time.Now()
	defer func() {
		if took := time.Since(begin); took > patience/4 {
			t.Errorf("the lists took %v", took)
		}
	}()
	pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	containers, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	note := func(id string) {
		if there[id] {
			t.Errorf("%s is listed twice", id)
		}
		there[id] = true
	}
	for _, p := range pods.GetItems() {
		note(p.GetId())
	}
	for _, c := range containers.GetContainers() {
		if note(c.GetId()); !there[c.GetPodSandboxId()] {
			t.Errorf("container %s is listed without its sandbox", c.GetId())
		}
	}
	return there, nil
}

// whole fails unless the lists have both pods, and berth's own pod runs commands.
func (b *bed) whole(t *testing.T, own, theirs *testbed.Pod) {
	t.Helper()
	there, err := listed(t, b.Client)
	testbed.Must(t, err)
	for _, id := range []string{own.ID, own.Container.ID, theirs.ID, theirs.Container.ID} {
		if !there[id] {
			t.Errorf("%s is not listed", id)
		}
	}
	if got := own.Container.Exec(t, "echo", "here"); got != "here\n" {
		t.Errorf("exec in berth's own pod prints %q", got)
	}
}

// refused waits until a call about the other daemon's pod fails soon, and names handler and socket.
func (b *bed) refused(t *testing.T, theirs *testbed.Pod) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := b.Client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: theirs.Container.ID})
		if text := fmt.Sprint(err); status.Code(err) != codes.Unavailable || !strings.Contains(text, `handler "legacy"`) || !strings.Contains(text, b.other.Socket) {
			return fmt.Errorf("status of a container of a daemon that does not answer: %w, want unavailable", err)
		}
		return nil
	})
}

// answers waits until calls about the other daemon's pod work again.
func (b *bed) answers(t *testing.T, theirs *testbed.Pod) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		_, err := b.Client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: theirs.Container.ID})
		return err
	})
	if got := theirs.Container.Exec(t, "echo", "there"); got != "there\n" {
		t.Errorf("exec in the other daemon's pod prints %q", got)
	}
}

func TestADaemonThatStopsAndDies(t *testing.T) {
	b := newBed(t)
	own := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	theirs := b.Client.RunPod(t, testbed.PodSpec{Handler: "legacy", Image: b.Image, Command: []string{"sleep", "3600"}})
	brief := theirs.RunContainer(t, "brief", testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", "while ! test -e /end; do sleep 0.1; done; exit 7"}})
	events, err := b.Client.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	testbed.Must(t, err)
	ended := make(chan struct{})
	go func() {
		var err error
		for err == nil {
			_, err = events.Recv()
		}
		close(ended)
	}()
	b.whole(t, own, theirs)

	signal(t, b.other, syscall.SIGSTOP)
	resume := func() { _ = syscall.Kill(b.other.PID(), syscall.SIGCONT) }
	t.Cleanup(resume) // a stopped process cannot exit
	b.whole(t, own, theirs)
	b.refused(t, theirs)
	b.whole(t, own, theirs)
	resume()
	b.answers(t, theirs)

	brief.TryExec(t, "sh", "-c", "sleep 2 && touch /end &")
	b.other.Kill9(t)
	b.refused(t, theirs)
	b.whole(t, own, theirs)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the subscription to events did not end when the daemon was killed")
	}
	b.other.Start(t)
	b.answers(t, theirs)
	b.whole(t, own, theirs)
	got := brief.WaitExit(t)
	// A containerd that did not run when a container exited may not know its exit code.
	direct, err := b.other.Client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: brief.ID})
	if err != nil || got.GetExitCode() != direct.GetStatus().GetExitCode() {
		t.Errorf("through berth the exit code is %d, but containerd has %v, %v", got.GetExitCode(), direct, err)
	}
	b.other.Kill9(t)
	b.Kill9(t)
	b.Start(t)
	b.whole(t, own, theirs) // from berth's state on disk
	b.other.Start(t)
	b.ready(t, "legacy")
	b.answers(t, theirs)
	b.whole(t, own, theirs)
}
