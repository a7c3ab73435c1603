package capacity

import (
	"slices"
	"testing"

	"k8s.io/client-go/tools/cache"
)

// A pod that is made again under its name is an update where pods are listed anew: also the
// node that it left has room again.
func TestChanged(t *testing.T) {
	here, there := &Pod{node: "here"}, &Pod{node: "there"}
	var got []string
	h := changed(func(p *Pod) { got = append(got, p.node) })
	for _, c := range []struct {
		what string
		do   func()
		want []string
	}{
		{"comes", func() { h.OnAdd(here, false) }, []string{"here"}},
		{"moves", func() { h.OnUpdate(here, there) }, []string{"here", "there"}},
		{"goes", func() { h.OnDelete(there) }, []string{"there"}},
		{"went unseen", func() { h.OnDelete(cache.DeletedFinalStateUnknown{Obj: there}) }, []string{"there"}},
		{"is something else", func() { h.OnAdd("here", false) }, nil},
	} {
		got = nil
		if c.do(); !slices.Equal(got, c.want) {
			t.Errorf("one that %s: got %v, want %v", c.what, got, c.want)
		}
	}
}
