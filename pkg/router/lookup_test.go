package router

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// busyNode returns a node with 100 handlers and 10,000 pods of two containers.
func busyNode(tb testing.TB) (r routes, o *owners, names, sandboxes, containers []string) {
	tb.Helper()
	b := routertest.New("one")
	var all []handler.Route[Backend]
	for i := range 100 {
		name := fmt.Sprintf("handler-%02d", i)
		names = append(names, name)
		all = append(all, handler.Route[Backend]{Backend: b, Definition: &handler.Definition{Name: name}, State: handler.State{Phase: handler.Ready}})
	}
	table := test.Value(handler.NewTable(1, names[0], all))(tb)
	var inventory []handler.Owned
	for i := range 10_000 {
		pod := handler.Owned{Sandbox: someID(i), Handler: names[i%len(names)], Containers: []string{someID(-2*i - 1), someID(-2*i - 2)}}
		inventory = append(inventory, pod)
		sandboxes = append(sandboxes, pod.Sandbox)
		containers = append(containers, pod.Containers...)
	}
	o = newOwners()
	o.adopt(&inventoried{b, func() []handler.Owned { return inventory }})
	return routes{handler.NewRegistry(table)}, o, names, sandboxes, containers
}

func someID(i int) string {
	sum := sha256.Sum256(fmt.Append(nil, i))
	return hex.EncodeToString(sum[:])
}

func TestLookupAllocatesNothing(t *testing.T) {
	r, o, names, sandboxes, containers := busyNode(t)
	i := 0
	for what, lookup := range map[string]func() bool{
		"handler":   func() bool { _, ok := r.registry.Current().Lookup(names[i%len(names)]); return ok },
		"sandbox":   func() bool { _, err := o.sandbox(sandboxes[i%len(sandboxes)]); return err == nil },
		"container": func() bool { _, err := o.container(containers[i%len(containers)]); return err == nil },
		"unknown":   func() bool { return o.sandboxes.get(containers[i%len(containers)]) == nil },
	} {
		if allocs := testing.AllocsPerRun(1000, func() {
			if i++; !lookup() {
				t.Fatal("not found")
			}
		}); allocs != 0 {
			t.Errorf("a lookup (%s) allocates %v times", what, allocs)
		}
	}
}

// BenchmarkLookup finds the owner of a sandbox, which is what the route adds to a call.
func BenchmarkLookup(b *testing.B) {
	_, o, _, sandboxes, _ := busyNode(b)
	i := 0
	for b.Loop() {
		i++
		if _, err := o.sandbox(sandboxes[i%len(sandboxes)]); err != nil {
			b.Fatal(err)
		}
	}
}
