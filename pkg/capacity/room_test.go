package capacity

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// aNode is a node that is ready and takes 110 pods.
func aNode(labels map[string]string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: labels},
		Status: corev1.NodeStatus{
			Capacity:   corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func notReady(n *corev1.Node) *corev1.Node {
	n.Status.Conditions[0].Status = corev1.ConditionUnknown
	return n
}

// of are that many pods of a class, which have one of each resource.
func of(class string, n int, resources ...string) []*corev1.Pod {
	var all []*corev1.Pod
	for range n {
		p := &corev1.Pod{Spec: corev1.PodSpec{RuntimeClassName: &class, Overhead: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}}
		for _, r := range resources {
			p.Spec.Overhead[corev1.ResourceName(r)] = resource.MustParse("1")
		}
		all = append(all, p)
	}
	return all
}

func ended(pods []*corev1.Pod, phase corev1.PodPhase) []*corev1.Pod {
	for _, p := range pods {
		p.Status.Phase = phase
	}
	return pods
}

func TestRoomOf(t *testing.T) {
	kata, runc := nodelabel.Pods("kata"), nodelabel.Pods("runc")
	classes := Classes{"kata": "kata", "kata-small": "kata"}
	ready := map[string]string{nodelabel.Handler("kata"): nodelabel.Ready, nodelabel.Present("kata"): nodelabel.True, nodelabel.MaxPods("kata"): "40"}
	without := func(keys ...string) map[string]string {
		labels := maps.Clone(ready)
		for _, k := range keys {
			delete(labels, k)
		}
		return labels
	}
	with := func(key, value string) map[string]string {
		labels := maps.Clone(ready)
		labels[key] = value
		return labels
	}
	gone := without(nodelabel.Handler("kata"), nodelabel.MaxPods("kata"))
	three := of("kata", 3, kata)
	for _, c := range []struct {
		what    string
		node    *corev1.Node
		pods    []*corev1.Pod
		classes Classes
		want    Room
	}{
		{"nothing", aNode(nil), nil, classes, Room{}},
		{"no class", aNode(ready), nil, nil, Room{}},
		{"empty", aNode(ready), nil, classes, Room{corev1.ResourceName(kata): 40}},
		{"some pods", aNode(ready), three, classes, Room{corev1.ResourceName(kata): 40}},
		{"more pods than it takes", aNode(ready), of("kata", 41, kata), classes, Room{corev1.ResourceName(kata): 41}},
		{"not bounded", aNode(without(nodelabel.MaxPods("kata"))), three, classes, Room{corev1.ResourceName(kata): 110}},
		{"bounded by nonsense", aNode(with(nodelabel.MaxPods("kata"), "many")), three, classes, Room{corev1.ResourceName(kata): 110}},
		{"bounded by less than nothing", aNode(with(nodelabel.MaxPods("kata"), "-1")), three, classes, Room{corev1.ResourceName(kata): 110}},
		{"takes no pods", aNode(gone), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"takes no pods and has none", aNode(gone), nil, classes, Room{corev1.ResourceName(kata): 0}},
		{"takes no pods and says how many", aNode(without(nodelabel.Handler("kata"))), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"another value", aNode(with(nodelabel.Handler("kata"), "no")), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"labelled by an older berth", aNode(without(nodelabel.Present("kata"))), nil, classes, Room{corev1.ResourceName(kata): 40}},
		{"all labels are gone", aNode(nil), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"the class is gone", aNode(ready), three, nil, Room{corev1.ResourceName(kata): 3}},
		{"the node does not answer", notReady(aNode(ready)), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"the node says nothing of itself", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: ready}}, three, classes, Room{corev1.ResourceName(kata): 3}},
		{"pods that ended", aNode(gone), append(ended(of("kata", 2, kata), corev1.PodSucceeded), append(ended(of("kata", 2, kata), corev1.PodFailed), three...)...), classes, Room{corev1.ResourceName(kata): 3}},
		{"pods that are older than the resource", aNode(ready), append(of("kata-small", 5), three...), classes, Room{corev1.ResourceName(kata): 35}},
		{"only such pods, and too many", aNode(ready), append(of("kata-small", 50), three...), classes, Room{corev1.ResourceName(kata): 3}},
		{"pods of another handler", aNode(ready), append(of("std", 5), three...), Classes{"kata": "kata", "std": "runc"}, Room{corev1.ResourceName(kata): 40}},
		{"pods without a class", aNode(ready), append([]*corev1.Pod{{}}, three...), classes, Room{corev1.ResourceName(kata): 40}},
		{"pods without a class, and the default handler", aNode(with(nodelabel.Default("kata"), nodelabel.True)), append([]*corev1.Pod{{}, {}}, three...), classes, Room{corev1.ResourceName(kata): 38}},
		{"too many of them", aNode(with(nodelabel.Default("kata"), nodelabel.True)), slices.Concat(slices.Repeat([]*corev1.Pod{{}}, 50), three), classes, Room{corev1.ResourceName(kata): 3}},
		{"another handler is the default", aNode(with(nodelabel.Default("runc"), nodelabel.True)), append([]*corev1.Pod{{}}, three...), classes, Room{corev1.ResourceName(kata): 40}},
		{"two handlers", aNode(with(nodelabel.Present("runc"), nodelabel.True)), three, Classes{"kata": "kata", "std": "runc"}, Room{corev1.ResourceName(kata): 40, corev1.ResourceName(runc): 0}},
		{"a pod that costs more", aNode(gone), of("kata", 1, kata, runc), classes, Room{corev1.ResourceName(kata): 1, corev1.ResourceName(runc): 1}},
	} {
		if got := RoomOf(c.node, c.pods, c.classes, ByStatus); !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
	}
}

// Pods that run are counted as the scheduler counts them.
func TestCounting(t *testing.T) {
	kata := corev1.ResourceName(nodelabel.Pods("kata"))
	classes := Classes{"kata": "kata"}
	pods := of("kata", 3, string(kata))
	for _, p := range pods[:2] { // as kubelets of 1.37 say it of pods that run
		p.Spec.Containers = []corev1.Container{{Name: "main"}}
		p.Status.AllocatedResources = p.Spec.Overhead
		p.Status.Resources = &corev1.ResourceRequirements{Requests: p.Spec.Overhead}
	}
	gone := aNode(map[string]string{nodelabel.Present("kata"): nodelabel.True})
	open := aNode(map[string]string{nodelabel.Handler("kata"): nodelabel.Ready, nodelabel.MaxPods("kata"): "10"})
	for _, c := range []struct {
		what     string
		node     *corev1.Node
		counting Counting
		want     int64
	}{
		{"full, by status", gone, ByStatus, 5}, {"full, once", gone, Once, 3},
		{"7 more, by status", open, ByStatus, 12}, {"7 more, once", open, Once, 10},
	} {
		slim := make([]*corev1.Pod, len(pods))
		for i := range pods {
			o, err := slimPod(pods[i])
			if err != nil {
				t.Fatal(err)
			}
			slim[i] = o.(*corev1.Pod)
		}
		for kind, pods := range map[string][]*corev1.Pod{"whole": pods, "slim": slim} {
			if got := RoomOf(c.node, pods, classes, c.counting)[kata]; got != c.want {
				t.Errorf("%s, %s pods: got %d, want %d", c.what, kind, got, c.want)
			}
		}
	}
}

func TestPatch(t *testing.T) {
	kata, runc := corev1.ResourceName(nodelabel.Pods("kata")), corev1.ResourceName(nodelabel.Pods("runc"))
	having := func(capacity, allocatable string) *corev1.Node {
		n := aNode(nil)
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
		if capacity != "" {
			n.Status.Capacity[kata] = resource.MustParse(capacity)
		}
		if allocatable != "" {
			n.Status.Allocatable[kata] = resource.MustParse(allocatable)
		}
		return n
	}
	both := func(change string) string {
		return `{"status":{"allocatable":{` + change + `},"capacity":{` + change + `}}}`
	}
	set := both(`"` + string(kata) + `":"3"`)
	for _, c := range []struct {
		what string
		room Room
		node *corev1.Node
		want string
	}{
		{"nothing", Room{}, aNode(nil), ""},
		{"new", Room{kata: 3}, aNode(nil), set},
		{"none", Room{kata: 0}, aNode(nil), both(`"` + string(kata) + `":"0"`)},
		{"as it is", Room{kata: 3}, having("3", "3"), ""},
		{"the kubelet has not copied it", Room{kata: 3}, having("3", "40"), set},
		{"nobody may have it", Room{kata: 3}, having("3", ""), set},
		{"less", Room{kata: 3}, having("40", "40"), set},
		{"gone", Room{}, having("40", "40"), both(`"` + string(kata) + `":null`)},
		{"half gone", Room{}, having("", "40"), both(`"` + string(kata) + `":null`)},
		{"one comes, one goes", Room{runc: 1}, having("40", "40"), both(`"` + string(kata) + `":null,"` + string(runc) + `":"1"`)},
	} {
		got := string(c.room.patch(c.node))
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
		if got != "" && !json.Valid([]byte(got)) {
			t.Errorf("%s: no JSON", c.what)
		}
	}
}
