package engine

import (
	"testing"

	"github.com/berth-cri/berth/pkg/handler"
)

// The router takes the inventory again only if the edition has changed.
func TestEditionChangesWithWhatIsAdded(t *testing.T) {
	k := deafCore(t)
	c := deafContainer(t, k, handler.Definition{})
	e := &Engine{core: &core{objects: newObjects()}}
	o := e.core.objects
	empty := e.Edition()
	o.addSandbox(c.sandbox)
	one := e.Edition()
	o.addContainer(c)
	if two := e.Edition(); empty == one || one == two || empty == two {
		t.Errorf("editions %d, %d, %d", empty, one, two)
	}
	before := e.Edition()
	o.dropContainer(c.ID())
	o.addContainer(c)
	if e.Edition() == before {
		t.Error("what came back is not new")
	}
}
