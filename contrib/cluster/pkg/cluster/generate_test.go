package cluster

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/test"
)

// aClass is a class, changed by all functions of change.
func aClass(name, handler string, change ...func(*nodev1.RuntimeClass)) *nodev1.RuntimeClass {
	c := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}
	for _, f := range change {
		f(c)
	}
	return c
}

func memory(amount string) func(*nodev1.RuntimeClass) {
	return func(c *nodev1.RuntimeClass) {
		c.Overhead = &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(amount)}}
	}
}

func selecting(labels map[string]string) func(*nodev1.RuntimeClass) {
	return func(c *nodev1.RuntimeClass) { c.Scheduling = &nodev1.Scheduling{NodeSelector: labels} }
}

// aNode is a ready node that reports handlers.
func aNode(name string, labels map[string]string, handlers ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, h := range handlers {
		n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: h})
	}
	return n
}

func unready(n corev1.Node, message string) corev1.Node {
	n.Status.Conditions[0].Status, n.Status.Conditions[0].Reason, n.Status.Conditions[0].Message = corev1.ConditionFalse, "KubeletNotReady", message
	return n
}

func TestHandlersOfNodes(t *testing.T) {
	got := Handlers(&State{Nodes: []corev1.Node{
		aNode("a", nil, "", "runc", "gvisor"), aNode("b", nil, "", "runc", "kata_qemu"), unready(aNode("c", nil, "kata", "runc"), "gone"), aNode("old", nil),
	}})
	var names, waiting []string
	for _, h := range got {
		names = append(names, h.Name)
		if h.State != runtimeclass.Ready {
			waiting = append(waiting, h.Name)
		}
	}
	if !slices.Equal(names, []string{"gvisor", "kata", "kata_qemu", "runc"}) || !slices.Equal(waiting, []string{"kata", "kata_qemu"}) {
		t.Errorf("got %+v", got)
	}
}

func TestUnlabelled(t *testing.T) {
	const label = "feature.node.kubernetes.io/handler.x"
	generated := aClass("x", "x", selecting(map[string]string{label: "ready"}))
	for _, c := range []struct {
		what  string
		class *nodev1.RuntimeClass
		nodes []corev1.Node
		want  bool
	}{
		{"no label anywhere", generated, []corev1.Node{aNode("a", nil, "x")}, true},
		{"no label of presence", aClass("x", "x", selecting(map[string]string{label + ".present": "true"})), []corev1.Node{aNode("a", map[string]string{label: "ready"}, "x")}, true},
		{"the label of presence", aClass("x", "x", selecting(map[string]string{label + ".present": "true"})), []corev1.Node{aNode("a", map[string]string{label + ".present": "true"})}, false},
		{"one node has the label", generated, []corev1.Node{aNode("a", nil, "x"), aNode("b", map[string]string{label: "ready"}, "x")}, false},
		{"a label with another value", generated, []corev1.Node{aNode("a", map[string]string{label: "gone"}, "x")}, true},
		{"no selector", aClass("x", "x"), nil, false},
		{"a selector of another label", aClass("x", "x", selecting(map[string]string{"a": "b"})), nil, false},
	} {
		test.Equal(t, c.what, Unlabelled(c.class, c.nodes), c.want)
	}
}

// counted gives a class overhead by which its pods are counted.
func counted(c *nodev1.RuntimeClass) {
	c.Overhead = &nodev1.Overhead{PodFixed: corev1.ResourceList{
		corev1.ResourceName("feature.node.kubernetes.io/handler." + c.Handler + ".pods"): resource.MustParse("1"),
	}}
}

// roomy gives a node a capacity for that many pods of a handler.
func roomy(n corev1.Node, handler, pods string) corev1.Node {
	room := corev1.ResourceList{corev1.ResourceName("feature.node.kubernetes.io/handler." + handler + ".pods"): resource.MustParse(pods)}
	n.Status.Capacity, n.Status.Allocatable = room, room
	return n
}

func TestUncounted(t *testing.T) {
	for _, c := range []struct {
		what  string
		class *nodev1.RuntimeClass
		nodes []corev1.Node
		want  bool
	}{
		{"no node counts", aClass("x", "x", counted), []corev1.Node{aNode("a", nil, "x"), roomy(aNode("b", nil, "y"), "y", "3")}, true},
		{"one node counts", aClass("x", "x", counted), []corev1.Node{aNode("a", nil, "x"), roomy(aNode("b", nil, "x"), "x", "3")}, false},
		{"one node counts, and is full", aClass("x", "x", counted), []corev1.Node{roomy(aNode("b", nil, "x"), "x", "0")}, false},
		{"pods of the class are not counted", aClass("x", "x", memory("1Mi")), []corev1.Node{aNode("a", nil, "x")}, false},
	} {
		test.Equal(t, c.what, Uncounted(c.class, c.nodes), c.want)
	}
}

// A list of names has no facts about handlers, so the annotations of existing classes stay.
func TestKeepKnown(t *testing.T) {
	class := func(handler string, annotations map[string]string) *nodev1.RuntimeClass {
		return &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "c", Annotations: annotations}, Handler: handler}
	}
	all := map[string]string{"berth.dev/isolation": "vm", "berth.dev/capabilities": "{}", "berth.dev/default": "true", "note": "another's"}
	known := map[string]string{"berth.dev/isolation": "vm", "berth.dev/capabilities": "{}", "berth.dev/default": "true"}
	for name, c := range map[string]struct {
		new   *nodev1.RuntimeClass
		there []nodev1.RuntimeClass
		want  map[string]string
	}{
		"new class without annotations": {class("h", nil), []nodev1.RuntimeClass{*class("h", all)}, known},
		"new class with an annotation":  {class("h", map[string]string{"berth.dev/isolation": "shared-kernel"}), []nodev1.RuntimeClass{*class("h", all)}, map[string]string{"berth.dev/isolation": "shared-kernel"}},
		"another annotation":            {class("h", map[string]string{"a": "b"}), []nodev1.RuntimeClass{*class("h", map[string]string{"berth.dev/default": "true"})}, map[string]string{"a": "b", "berth.dev/default": "true"}},
		"another handler":               {class("other", nil), []nodev1.RuntimeClass{*class("h", all)}, nil},
		"no existing class":             {class("h", nil), nil, nil},
		"no annotation of berth":        {class("h", nil), []nodev1.RuntimeClass{*class("h", map[string]string{"note": "x"})}, nil},
	} {
		Keep(c.new, c.there)
		if !maps.Equal(c.new.Annotations, c.want) {
			t.Errorf("%s: the annotations are %v, want %v", name, c.new.Annotations, c.want)
		}
	}
	if len(all) != 4 {
		t.Error("Keep changed the existing class")
	}
}

// A measured overhead stays if a class is generated again without a measurement.
func TestKeepOverhead(t *testing.T) {
	list := func(o *nodev1.Overhead) string {
		if o == nil {
			return ""
		}
		var all []string
		for _, name := range slices.Sorted(maps.Keys(o.PodFixed)) {
			q := o.PodFixed[name]
			all = append(all, strings.TrimPrefix(string(name), "feature.node.kubernetes.io/")+"="+q.String())
		}
		return strings.Join(all, ",")
	}
	for name, c := range map[string]struct {
		made  *nodev1.RuntimeClass
		there []nodev1.RuntimeClass
		want  string
		kept  bool
	}{
		"no existing class":               {aClass("a", "kata", counted), nil, "handler.kata.pods=1", false},
		"only a class of another handler": {aClass("a", "kata"), []nodev1.RuntimeClass{*aClass("a", "runc", memory("1Mi"))}, "", false},
		"measured again":                  {aClass("a", "kata", memory("2Mi")), []nodev1.RuntimeClass{*aClass("a", "kata", memory("1Mi"))}, "memory=2Mi", false},
		"not measured":                    {aClass("a", "kata", counted), []nodev1.RuntimeClass{*aClass("a", "kata", memory("1Mi"))}, "handler.kata.pods=1,memory=1Mi", true},
		"no capacity in the new class":    {aClass("a", "kata"), []nodev1.RuntimeClass{*aClass("a", "kata", counted)}, "", false},
	} {
		kept := Keep(c.made, c.there)
		if got := list(c.made.Overhead); got != c.want || kept != c.kept {
			t.Errorf("%s: the overhead is %s, kept: %v", name, got, kept)
		}
	}
}
