package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
)

var eventChecks = []check{
	{name: "a pod's life in order", needs: []Ability{Events}, run: eventsOfLife},
	{name: "events carry the pod's whole status", needs: []Ability{Events}, run: eventsCarryStatus},
	// Alone: together with the events of other checks the reader would stall all of containerd.
	{name: "a reader that stalls holds up nobody", needs: []Ability{Events}, alone: true, run: eventsStalledReader},
}

// eventLog receives events until the check ends. It always reads, because an endpoint may first
// send old events that it has kept, and a client that stops reading would stall the endpoint.
type eventLog struct {
	mu       sync.Mutex
	received []*runtimeapi.ContainerEventResponse
	// more has a token if received has grown since the last read from more.
	more   chan struct{}
	failed chan error
}

func (l *eventLog) add(e *runtimeapi.ContainerEventResponse) {
	l.mu.Lock()
	l.received = append(l.received, e)
	l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// take returns the oldest event of the sandbox, or nil, and drops the events before it.
func (l *eventLog) take(sandbox string) *runtimeapi.ContainerEventResponse {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.received {
		if e.GetContainerId() == sandbox || e.GetPodSandboxStatus().GetId() == sandbox {
			l.received = l.received[i+1:]
			return e
		}
	}
	l.received = nil
	return nil
}

// subscribe skips the check where the endpoint has no events.
func (n *node) subscribe(t *testing.T) *eventLog {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stream, err := n.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	must(t, err, "GetContainerEvents")
	l := &eventLog{more: make(chan struct{}, 1), failed: make(chan error, 1)}
	go func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				l.failed <- err
				return
			}
			l.add(e)
		}
	}()
	n.heard(t, l.failed, func(sandbox string) bool { return l.take(sandbox) != nil })
	return l
}

// heard creates pods until the subscription reports one, because no endpoint reports when a
// subscription takes effect, and through another daemon that takes longer.
func (n *node) heard(t *testing.T, failed <-chan error, of func(sandbox string) bool) {
	t.Helper()
	for end := time.Now().Add(n.Wait); ; {
		p := n.pod(t)
		p.stop(t)
		p.remove(t)
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 2*time.Second, true, func(context.Context) (bool, error) {
			select {
			case err := <-failed:
				if status.Code(err) == codes.Unimplemented {
					t.Skip("the endpoint answers Unimplemented to GetContainerEvents")
				}
				t.Fatalf("GetContainerEvents ended: %v", err)
			default:
			}
			return of(p.ID), nil
		})
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a subscription reported no pod within %v", n.Wait)
		}
	}
}

// next returns the next event of the sandbox.
func (l *eventLog) next(t *testing.T, n *node, sandbox string) *runtimeapi.ContainerEventResponse {
	t.Helper()
	timeout := time.After(patience.Of(n.Wait))
	for {
		if e := l.take(sandbox); e != nil {
			return e
		}
		select {
		case <-l.more:
		case err := <-l.failed:
			t.Fatalf("the stream ended: %v", err)
		case <-timeout:
			t.Fatalf("no event of sandbox %s within %v", sandbox, n.Wait)
		}
	}
}

func eventsOfLife(t *testing.T, n *node) {
	l := n.subscribe(t)
	p := n.pod(t)
	c := p.start(t, sh("sleep 1; exit 3"))
	c.waitExit(t)
	p.stop(t)
	p.remove(t)
	name := func(e *runtimeapi.ContainerEventResponse) string {
		who := "container"
		if e.GetContainerId() == p.ID {
			who = "sandbox"
		}
		return fmt.Sprintf("%s %v", who, e.GetContainerEventType())
	}
	var got []string
	var last int64
	for {
		e := l.next(t, n, p.ID)
		got = append(got, name(e))
		if e.GetCreatedAt() < last || n.Berth && e.GetCreatedAt() == last {
			t.Errorf("event %d has created_at %d, the one before %d", len(got), e.GetCreatedAt(), last)
		}
		last = e.GetCreatedAt()
		if got[len(got)-1] == "sandbox CONTAINER_DELETED_EVENT" {
			break
		}
	}
	want := []string{
		"sandbox CONTAINER_CREATED_EVENT", "sandbox CONTAINER_STARTED_EVENT",
		"container CONTAINER_CREATED_EVENT", "container CONTAINER_STARTED_EVENT", "container CONTAINER_STOPPED_EVENT",
		"sandbox CONTAINER_STOPPED_EVENT", "container CONTAINER_DELETED_EVENT", "sandbox CONTAINER_DELETED_EVENT",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events are\n%v\nwant\n%v", got, want)
	}
}

func eventsCarryStatus(t *testing.T, n *node) {
	l := n.subscribe(t)
	p := n.pod(t)
	other := p.start(t, forever())
	c := p.start(t, sh("sleep 1; exit 3"))
	for {
		e := l.next(t, n, p.ID)
		if e.GetContainerId() != c.ID || e.GetContainerEventType() != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
			continue
		}
		if e.GetPodSandboxStatus().GetMetadata() == nil || e.GetPodSandboxStatus().GetNetwork().GetIp() == "" {
			t.Errorf("the pod's status is %v", e.GetPodSandboxStatus())
		}
		all := map[string]*runtimeapi.ContainerStatus{}
		for _, st := range e.GetContainersStatuses() {
			all[st.GetId()] = st
		}
		if st := all[c.ID]; st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 3 {
			t.Errorf("the effect is not visible in the event: %v", all)
		}
		if st := all[other.ID]; len(all) != 2 || st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the pod's other container is not in the event: %v", all)
		}
		return
	}
}

// eventsStalledReader subscribes and stops reading after the first event. Neither pods nor other
// subscribers may wait for that reader.
func eventsStalledReader(t *testing.T, n *node) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	stalled, err := n.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	must(t, err, "GetContainerEvents")
	first, failed := make(chan struct{}), make(chan error, 1)
	go func() { // one event shows that the subscription works
		defer close(first)
		if _, err := stalled.Recv(); err != nil {
			failed <- err
		}
	}()
	n.heard(t, failed, func(string) bool {
		select {
		case <-first:
			return len(failed) == 0
		default:
			return false
		}
	})
	l := n.subscribe(t)
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		// Big events soon fill what a stream buffers before it waits for its reader.
		c.Annotations = map[string]string{"filling": strings.Repeat("x", 64<<10)}
	})
	for range 8 {
		c := p.start(t, sh("exit 0"))
		c.waitExit(t)
		c.remove(t)
	}
	p.stop(t)
	p.remove(t)
	var last int64
	for i := range 8*4 + 4 {
		e := l.next(t, n, p.ID)
		if e.GetCreatedAt() < last || n.Berth && e.GetCreatedAt() == last {
			t.Errorf("event %d has created_at %d, the one before %d", i, e.GetCreatedAt(), last)
		}
		last = e.GetCreatedAt()
	}
	if e, err := stalled.Recv(); err != nil || e.GetContainerId() == "" {
		t.Errorf("the stalled reader then reads %v, %v", e, err)
	}
}
