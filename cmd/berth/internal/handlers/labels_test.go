package handlers

import (
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/nodelabel"
	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// What the command makes of the daemon's answer is what the daemon itself knows.
func TestLabelsOfHandlers(t *testing.T) {
	handlers := []*adminv1.Handler{
		{Name: "a", State: adminv1.State_STATE_READY, MaxPods: 40, Capabilities: &adminv1.Capabilities{
			Isolation: "vm", Capabilities: []*adminv1.Capability{{Name: "checkpoint", Answer: "yes", Source: "ran"}},
		}},
		{Name: "b", State: adminv1.State_STATE_NOT_READY, Capabilities: &adminv1.Capabilities{Isolation: "vm"}},
		{Name: "c", State: adminv1.State_STATE_CORDONED},
		{Name: "d", State: adminv1.State_STATE_DRAINING},
	}
	var phases []handler.Phase
	for _, k := range knownOf(handlers) {
		phases = append(phases, k.Phase)
	}
	test.EqualLists(t, "the result", phases, []handler.Phase{handler.Ready, handler.NotReady, handler.Cordoned, handler.Draining})
	want := []nodelabel.Fact{
		{Key: nodelabel.Handler("a"), Value: nodelabel.Ready},
		{Key: nodelabel.MaxPods("a"), Value: "40"},
		{Key: nodelabel.About("a", "isolation"), Value: string(capability.VM)},
		{Key: nodelabel.About("a", "checkpoint"), Value: "true"},
	}
	test.EqualLists(t, "the result", nodelabel.Labels(knownOf(handlers)), want)
	if n := nodeOf("node-1", want); n.Metadata.Name != "node-1" || len(n.Metadata.Labels) != len(want) || n.Metadata.Labels[nodelabel.Handler("a")] != nodelabel.Ready {
		t.Errorf("got %+v", n)
	}
	if n := nodeOf("node-1", nil); n.Metadata.Labels == nil {
		t.Error("no labels are null, and not none")
	}
}
