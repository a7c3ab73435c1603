package podcheckpoint

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/criu"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// TestRefusedIsLeftAlone: containers that cannot be written are neither frozen nor thawed, which
// would wait for a supervisor that is being replaced.
func TestRefusedIsLeftAlone(t *testing.T) {
	all, by := pods(t), &enginetest.Runner{Fails: map[string]error{"Client": errdefs.ErrUnavailable}}
	s := enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, by)
	records, _, err := store.Open[pod.ContainerSpec, pod.ContainerStatus](t.TempDir())
	must(t, err)
	o, err := records.Create(pod.NewID(), pod.ContainerSpec{Sandbox: s.ID(), Checkpoint: "/of/an/image"}, pod.ContainerStatus{Phase: pod.PhaseRunning}, store.Relaxed)
	must(t, err)
	c := pod.NewContainer(o, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	e := &each{pods: all, dumper: criu.New(all, nil, nil)}
	if err := e.write(ctx, s, []*pod.Container{c}, nil, t.TempDir()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("it is refused with %v", err)
	}
	if calls := by.Calls(); len(calls) > 0 || exists(all.FrozenDir(c.ID())) {
		t.Errorf("its supervisor is asked for %q", calls)
	}
}
