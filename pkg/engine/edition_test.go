package engine

import (
	"testing"

	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/recovery"
	"github.com/berth-cri/berth/pkg/handler"
)

// The router takes the inventory again only if the edition has changed.
func TestEditionChangesWithWhatIsAdded(t *testing.T) {
	c := enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, &enginetest.Runner{}))
	o := pod.NewIndex()
	e := &Engine{parts: recovery.Deps{Pods: &pod.Registry{Index: o}}}
	empty := e.Edition()
	o.AddSandbox(c.Sandbox)
	one := e.Edition()
	o.AddContainer(c)
	if two := e.Edition(); empty == one || one == two || empty == two {
		t.Errorf("editions %d, %d, %d", empty, one, two)
	}
	before := e.Edition()
	o.DropContainer(c.ID())
	o.AddContainer(c)
	if e.Edition() == before {
		t.Error("what came back is not new")
	}
}
