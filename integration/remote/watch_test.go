package remote

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// pause is the time between two looks at something.
func pause() { time.Sleep(20 * time.Millisecond) }

// watch looks at a node all the time, as a kubelet does: by lists and by events.
type watch struct {
	client *testbed.Client
	// always are what every list has.
	always []string

	mu sync.Mutex
	// lists and failures count lists that were answered, and not.
	lists, failures int
	// slowest is the longest that a list took.
	slowest time.Duration
	wrong   []string
	ended   int
}

// slow is far above how long a list waits for a daemon.
const slow = 15 * time.Second

// begin watches until the returned function is called.
func (w *watch) begin(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	subscribed := make(chan struct{})
	watching.Go(func() { w.poll(ctx) })
	watching.Go(func() { w.listen(ctx, sync.OnceFunc(func() { close(subscribed) })) })
	<-subscribed
	end = sync.OnceFunc(func() { cancel(); watching.Wait() })
	t.Cleanup(end)
	return end
}

func (w *watch) poll(ctx context.Context) {
	for ctx.Err() == nil {
		if err := w.look(ctx); err != nil && ctx.Err() == nil {
			w.mu.Lock()
			w.failures++
			w.mu.Unlock()
		}
		pause()
	}
}

// look lists containers between two lists of sandboxes.
func (w *watch) look(ctx context.Context) error {
	there := map[string]bool{}
	if err := w.timed(func() error {
		l, err := w.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		w.take(l.GetItems(), there)
		return err
	}); err != nil {
		return err
	}
	var containers []*runtimeapi.Container
	if err := w.timed(func() error {
		l, err := w.client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		containers = l.GetContainers()
		return err
	}); err != nil {
		return err
	}
	l, err := w.client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	w.take(l.GetItems(), there)
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range containers {
		if !there[c.GetPodSandboxId()] {
			w.wrong = append(w.wrong, fmt.Sprintf("container %s is listed without its sandbox %s", c.GetId(), c.GetPodSandboxId()))
		}
		if seen[c.GetId()] {
			w.wrong = append(w.wrong, fmt.Sprintf("container %s is listed twice", c.GetId()))
		}
		seen[c.GetId()] = true
	}
	for _, id := range w.always {
		if !seen[id] && !there[id] {
			w.wrong = append(w.wrong, id+" is not listed")
		}
	}
	return nil
}

func (w *watch) take(sandboxes []*runtimeapi.PodSandbox, there map[string]bool) {
	seen := map[string]bool{}
	for _, s := range sandboxes {
		if seen[s.GetId()] {
			w.mu.Lock()
			w.wrong = append(w.wrong, fmt.Sprintf("sandbox %s is listed twice", s.GetId()))
			w.mu.Unlock()
		}
		seen[s.GetId()], there[s.GetId()] = true, true
	}
}

func (w *watch) timed(list func() error) error {
	begin := time.Now()
	err := list()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lists++
	w.slowest = max(w.slowest, time.Since(begin))
	return err
}

// listen subscribes again when a subscription ends.
func (w *watch) listen(ctx context.Context, subscribed func()) {
	for ctx.Err() == nil {
		events, err := w.client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
		if err == nil {
			subscribed()
		}
		for err == nil {
			_, err = events.Recv()
		}
		w.mu.Lock()
		w.ended++
		w.mu.Unlock()
		pause()
	}
}

// judge says what was wrong.
func (w *watch) judge(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%d lists, %d looks failed, slowest %v; the subscription ended %d times", w.lists, w.failures, w.slowest, w.ended)
	for i, text := range w.wrong {
		if i == 10 {
			t.Errorf("… and %d more", len(w.wrong)-i)
			break
		}
		t.Error(text)
	}
	if w.slowest > slow {
		t.Errorf("a list took %v", w.slowest)
	}
}

// hear subscribes to the node's events until ctx ends.
func (b *bed) hear(ctx context.Context, t *testing.T) <-chan *runtimeapi.ContainerEventResponse {
	t.Helper()
	events, err := b.Client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	testbed.Must(t, err)
	heard := make(chan *runtimeapi.ContainerEventResponse, 1000)
	go func() {
		defer close(heard)
		for {
			e, err := events.Recv()
			if err != nil {
				return
			}
			heard <- e
		}
	}()
	return heard
}
