package nodelabel

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

func can(isolation capability.Isolation, answers map[capability.Name]capability.Answer) capability.Table {
	t := capability.Table{Isolation: isolation}
	for name, answer := range answers {
		t.Set(name, answer, capability.Probed, "")
	}
	return t
}

func TestLabels(t *testing.T) {
	const p = "feature.node.kubernetes.io/handler."
	everything := map[capability.Name]capability.Answer{
		capability.UserNamespaces: capability.Yes, capability.RecursiveReadOnlyMounts: capability.Yes,
		capability.Checkpoint: capability.Yes, capability.Exec: capability.Yes,
	}
	handlers := []Known{
		{"runc", handler.Ready, true, 40, can(capability.SharedKernel, everything)},
		{"cordoned", handler.Cordoned, false, 7, can(capability.SharedKernel, everything)},
		{"draining", handler.Draining, false, 0, can(capability.SharedKernel, everything)},
		{"broken", handler.NotReady, true, 0, can(capability.VM, everything)},
		{"gvisor", handler.Ready, false, 0, can(capability.UserSpaceKernel, map[capability.Name]capability.Answer{
			capability.UserNamespaces: capability.No, capability.Checkpoint: capability.Unknown,
		})},
		{"silent", handler.Ready, false, 0, capability.Table{}},
	}
	before := slices.Clone(handlers)
	want := []Fact{
		{p + "gvisor", "ready"},
		{p + "runc", "ready"},
		{p + "silent", "ready"},
		{p + "gvisor.isolation", "user-space-kernel"},
		{p + "runc.default", "true"},
		{p + "runc.max-pods", "40"},
		{p + "runc.isolation", "shared-kernel"},
		{p + "runc.user-namespaces", "true"},
		{p + "runc.recursive-read-only-mounts", "true"},
		{p + "runc.checkpoint", "true"},
	}
	if got := Labels(handlers); !slices.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
	for i, h := range handlers {
		if h.Name != before[i].Name {
			t.Fatal("the caller's list was sorted")
		}
	}
	want = []Fact{
		{p + "broken.state", "not-ready"},
		{p + "cordoned.state", "cordoned"},
		{p + "draining.state", "draining"},
		{p + "gvisor.state", "ready"},
		{p + "runc.state", "ready"},
		{p + "silent.state", "ready"},
	}
	if got := States(handlers); !slices.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
	want = []Fact{
		{p + "broken.present", "true"},
		{p + "cordoned.present", "true"},
		{p + "draining.present", "true"},
		{p + "gvisor.present", "true"},
		{p + "runc.present", "true"},
		{p + "silent.present", "true"},
	}
	if got := Presence(handlers); !slices.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
	for _, f := range slices.Concat(Labels(handlers), Presence(handlers), States(handlers)) {
		if problems := append(validation.IsQualifiedName(f.Key), validation.IsValidLabelValue(f.Value)...); len(problems) > 0 {
			t.Errorf("%v: %v", f, problems)
		}
	}
	if got := Labels(nil); len(got) != 0 {
		t.Errorf("labels without any handler: %v", got)
	}
}
