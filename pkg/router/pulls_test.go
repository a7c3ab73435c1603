package router

import (
	"testing"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

func TestPodsOfPullsEndWithTheirSandboxes(t *testing.T) {
	o, p := newOwners(), &pulls{}
	b := routertest.New("one")
	for _, id := range []string{"a", "b"} {
		recorded(t, o.addSandbox(id, "runc", handler.Attempt{}, b))
		p.made(o, "pod-"+id, id)
	}
	if got := p.pod(t.Context(), o, "pod-a"); got == nil || got.ID != "a" {
		t.Errorf("pod-a has %v", got)
	}
	o.dropSandbox("a") // by somebody else than a client of this router
	recorded(t, o.addSandbox("c", "runc", handler.Attempt{}, b))
	p.made(o, "pod-c", "c")
	p.removed("b")
	if len(p.pods) != 1 || p.pods["pod-c"] != "c" {
		t.Errorf("kept are %v", p.pods)
	}
}

// Changes elsewhere must not keep a backend's pods from being taken over.
func TestReconcileEndsAlthoughChangesNeverPause(t *testing.T) {
	o := newOwners()
	other := routertest.New("other")
	asked := 0
	b := &inventoried{routertest.New("one"), func() []handler.Owned {
		if asked++; asked <= 3 {
			recorded(t, o.addSandbox(string(rune('a'+asked)), "runc", handler.Attempt{}, other))
		}
		return []handler.Owned{owned("5b")}
	}}
	if err := o.reconcile(b); err != nil {
		t.Fatal(err)
	}
	if o.sandboxes.get("5b") == nil {
		t.Error("its pod has no owner")
	}
}
