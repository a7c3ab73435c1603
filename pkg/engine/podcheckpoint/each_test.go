package podcheckpoint

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/criu"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// Containers that cannot be checkpointed are neither frozen nor thawed. A thaw would wait for a
// supervisor that is being replaced.
func TestRefusedIsLeftAlone(t *testing.T) {
	all, by := pods(t), &enginetest.Runner{Fails: map[string]error{"Client": errdefs.ErrUnavailable}}
	s := enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, by)
	records, _, err := store.Open[pod.ContainerSpec, pod.ContainerStatus](t.TempDir())
	test.Must(t, err)
	o := test.Value(records.Create(pod.NewID(), pod.ContainerSpec{Sandbox: s.ID(), Checkpoint: "/of/an/image"}, pod.ContainerStatus{Phase: pod.PhaseRunning}, store.Relaxed))(t)
	c := pod.NewContainer(o, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e := &perContainer{pods: all, dumper: criu.New(all, nil, nil)}
	test.Is(t, e.write(ctx, s, []*pod.Container{c}, nil, t.TempDir()), errdefs.IsFailedPrecondition, "the checkpoint")
	if calls := by.Calls(); len(calls) > 0 || exists(all.FrozenDir(c.ID())) {
		t.Errorf("the supervisor got the calls %q", calls)
	}
}

// waits is a Runner with a Client method that blocks until the Client of another is called.
type waits struct {
	*enginetest.Runner

	once         sync.Once
	asked, other chan struct{}
}

func (w *waits) Bind(s *pod.Sandbox) pod.Runner {
	by := w.Runner.Bind(s)
	by.Connection = w
	return by
}

func (w *waits) Client(ctx context.Context) (*shim.Client, error) {
	w.once.Do(func() { close(w.asked) })
	select {
	case <-w.other:
	case <-ctx.Done():
	}
	return nil, errdefs.ErrFailedPrecondition
}

// All containers are thawed at the same time.
func TestThawOfAll(t *testing.T) {
	all := pods(t)
	one, two := make(chan struct{}), make(chan struct{})
	var containers []*pod.Container
	for _, by := range []*waits{{Runner: &enginetest.Runner{}, asked: one, other: two}, {Runner: &enginetest.Runner{}, asked: two, other: one}} {
		containers = append(containers, enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, by)))
	}
	done := make(chan error, 1)
	go func() {
		done <- (&perContainer{pods: all, dumper: criu.New(all, nil, nil)}).thaw(t.Context(), containers)
	}()
	select {
	case <-two:
	case <-time.After(10 * time.Second):
		t.Error("the second thaw waits for the first")
	}
	test.Is(t, <-done, errdefs.IsFailedPrecondition, "the thaw")
}
