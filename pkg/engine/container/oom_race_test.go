package container

import (
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// TestOOMNewsMeetsTheExit records an out-of-memory kill, as a shim reports it, and the exit
// at the same time. The reason is OOMKilled, whichever is recorded first.
func TestOOMNewsMeetsTheExit(t *testing.T) {
	pods, _, err := pod.Open(t.Context(), t.TempDir(), t.TempDir())
	test.Must(t, err)
	s := enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{Type: handler.Shim}}, &enginetest.Runner{})
	pods.Index.AddSandbox(s)
	b := &ends{Deps{Pods: pods, Events: events.NewAnnouncer(events.NewBroker(), pods, nil)}}
	for n := range 300 {
		o := test.Value(pods.Containers.Create(pod.NewID(), pod.ContainerSpec{Sandbox: s.ID(), CgroupsPath: "/none"}, pod.ContainerStatus{Phase: pod.PhaseRunning}, store.Relaxed))(t)
		c := pod.NewContainer(o, s)
		pods.Index.AddContainer(c)
		var both sync.WaitGroup
		both.Go(func() { pods.Index.RecordOOM(c.ID()) })
		both.Go(func() { b.RecordExit(c, pod.Exit{Status: 137, At: time.Now()}) })
		both.Wait()
		if st := c.Status(); st.Reason != "OOMKilled" {
			t.Fatalf("container %d has the reason %q", n, st.Reason)
		}
		pods.Index.DropContainer(c.ID())
	}
}
