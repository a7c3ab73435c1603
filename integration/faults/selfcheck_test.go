package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// probeSelfCheck has a handler run a self-check pod, and returns the failure or "".
func (b *bed) probeSelfCheck(t *testing.T, name string) string {
	t.Helper()
	h, err := b.tryProbeSelfCheck(t, name)
	testbed.Must(t, err)
	return h.GetProbeError()
}

func (b *bed) tryProbeSelfCheck(t *testing.T, name string) (*adminv1.Handler, error) {
	t.Helper()
	return b.probe(t, name, true)
}

// probe has the daemon probe a handler now.
func (b *bed) probe(t *testing.T, name string, selfCheck bool) (*adminv1.Handler, error) {
	t.Helper()
	c := b.admin(t)
	resp, err := c.Probe(testbed.Within(t, 2*time.Minute), &adminv1.ProbeRequest{Name: name, SelfCheck: selfCheck})
	return resp.GetHandler(), err
}

// TestSelfCheckPods runs self-check pods under each kind of runtime. They are not listed,
// cause no events and leave nothing. They fail under a runtime that answers probes but
// does not run containers.
func TestSelfCheckPods(t *testing.T) {
	t.Parallel()
	runc := testbed.Part(t, testbed.Runc)
	liar, dead, idle := newScripted(t), newScripted(t), newScripted(t)
	for _, verb := range []string{"run", "create"} {
		liar.on(t, verb, "echo 'it cannot be done' >&2; exit 1")
		dead.on(t, verb, "exit 0")
	}
	idle.on(t, "run", "exec sleep 1000")
	config := fmt.Sprintf(`
default_runtime = "runc"
[handlers]
probe_interval = "1s"
[runtimes.runc]
runtime_path = %[1]q
max_pods = 1
[runtimes.crun]
runtime_path = %[2]q
[runtimes.gvisor]
runtime_path = %[3]q
[runtimes.shim]
runtime_path = %[4]q
options.BinaryName = %[1]q
[runtimes.liar]
runtime_path = %[5]q
self_check_pod = true
[runtimes.dead]
runtime_path = %[6]q
[runtimes.hanging]
runtime_path = %[7]q
container_create_timeout = "2s"
`, runc, testbed.Part(t, testbed.Crun), testbed.Part(t, testbed.Runsc), testbed.Part(t, testbed.RuncShim), liar.Path, dead.Path, idle.Path)
	plain := strings.Replace(config, "self_check_pod = true\n", "", 1)
	b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}, Config: plain})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}}) // fills max_pods
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := b.Client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	testbed.Must(t, err)
	events := make(chan *runtimeapi.ContainerEventResponse, 100)
	go func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				close(events)
				return
			}
			events <- e
		}
	}()
	withPod := b.Snapshot(t)
	for _, name := range []string{"runc", "crun", "gvisor", "shim"} {
		testbed.Same(t, b.probeSelfCheck(t, name), "", "%s: the failure of the self-check pod is", name)
	}
	testbed.Same(t, b.shown(t), 1, "number of listed sandboxes:")
	b.Restart(t) // stops idle supervisors
	b.NoLeaks(t, withPod)
	for e := range events { // the stream has ended at the restart
		t.Errorf("a self-check pod caused an event: %v", e)
	}

	b.reload(t, config)
	// A handler with self_check_pod is not ready if its pod fails. The reason has the step.
	testbed.Eventually(t, time.Minute, func() error {
		for _, h := range b.handlersInfo(t).Handlers {
			if bad := h.Name == "liar"; bad != (h.State == "not-ready") || bad && !strings.Contains(h.Reason, "the self-check pod failed at its start: ") {
				return fmt.Errorf("%s is %s: %s", h.Name, h.State, h.Reason)
			}
		}
		return nil
	})
	testbed.Contains(t, b.probeSelfCheck(t, "dead"), "the self-check pod failed at its start: ", "a runtime that does not start the container")
	if why := b.probeSelfCheck(t, "hanging"); !strings.Contains(why, "the self-check pod failed at its start: ") || !strings.Contains(why, "timed out") {
		t.Errorf("a runtime that hangs: %q", why)
	}
	liar.on(t, "run", "")
	testbed.Eventually(t, time.Minute, func() error {
		for _, h := range b.handlersInfo(t).Handlers {
			if h.Name == "liar" && h.State != "ready" {
				return fmt.Errorf("liar is %s: %s", h.State, h.Reason)
			}
		}
		return nil
	})
	b.reload(t, plain) // no more self-check pods besides those of the probes below
	b.Restart(t)       // while a self-check pod of the hanging runtime may still be running
	b.NoLeaks(t, withPod)
	pod.Remove(t)
	for _, c := range []struct{ handler, place string }{
		{"crun", failpoint.SandboxReserved},
		{"gvisor", failpoint.SelfCheckRunning},
		{"shim", failpoint.SelfCheckRunning},
		{"runc", failpoint.SandboxErased},
	} {
		t.Run(c.handler+" "+c.place, func(t *testing.T) {
			b.Stop(t)
			b.SetEnvironment("BERTH_FAILPOINT=" + c.place)
			b.Start(t)
			// A busy daemon may return a timeout before it reaches the failpoint.
			_, _ = b.tryProbeSelfCheck(t, c.handler)
			b.Wait(t, time.Minute)
			b.SetEnvironment()
			b.Start(t)
			testbed.Same(t, b.shown(t), 0, "number of listed sandboxes:")
			b.NothingLeft(t, atRest)
		})
	}
}
