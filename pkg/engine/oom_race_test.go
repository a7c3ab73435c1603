package engine

import (
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// TestOOMNewsMeetsTheExit has a shim tell of an out-of-memory kill in the moment in which
// the exit is recorded. Whichever is first, the container was killed for memory.
func TestOOMNewsMeetsTheExit(t *testing.T) {
	spec := sandboxSpec{Definition: &handler.Definition{Type: handler.Shim}}
	s := newSandbox(reopened(t, t.TempDir(), spec))
	containers, _, err := store.Open[containerSpec, containerStatus](t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	objects := newObjects()
	objects.addSandbox(s)
	now := &clock{}
	b := &ends{background: t.Context(), clock: now, events: newAnnouncer(newBroker(), now, objects)}
	for n := range 300 {
		o, err := containers.Create(newID(), containerSpec{Sandbox: s.ID(), CgroupsPath: "/none"}, containerStatus{Phase: phaseRunning}, store.Relaxed)
		if err != nil {
			t.Fatal(err)
		}
		c := newContainer(o, s)
		objects.addContainer(c)
		var both sync.WaitGroup
		both.Go(func() { objects.noteOOM(c.ID()) })
		both.Go(func() { b.recordEnd(c, taskExit{Status: 137, At: time.Now()}) })
		both.Wait()
		if st := c.Status(); st.Reason != "OOMKilled" {
			t.Fatalf("container %d is %s", n, st.Reason)
		}
		objects.dropContainer(c.ID())
	}
}
