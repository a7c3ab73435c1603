package capacity

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// aNode is a ready node with a capacity of 110 pods.
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

// of returns n pods of a class, whose overhead has one of each of these resources.
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

func slim(pods []*corev1.Pod, counting Counting) []*Pod {
	var all []*Pod
	for _, p := range pods {
		all = append(all, podOf(p, counting))
	}
	return all
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
		{"more pods than max-pods", aNode(ready), of("kata", 41, kata), classes, Room{corev1.ResourceName(kata): 41}},
		{"without max-pods", aNode(without(nodelabel.MaxPods("kata"))), three, classes, Room{corev1.ResourceName(kata): 110}},
		{"max-pods is not a number", aNode(with(nodelabel.MaxPods("kata"), "many")), three, classes, Room{corev1.ResourceName(kata): 110}},
		{"max-pods is negative", aNode(with(nodelabel.MaxPods("kata"), "-1")), three, classes, Room{corev1.ResourceName(kata): 110}},
		{"not ready, without max-pods", aNode(gone), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"not ready, without max-pods and pods", aNode(gone), nil, classes, Room{corev1.ResourceName(kata): 0}},
		{"not ready, with max-pods", aNode(without(nodelabel.Handler("kata"))), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"ready has another value", aNode(with(nodelabel.Handler("kata"), "no")), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"without the label of presence", aNode(without(nodelabel.Present("kata"))), nil, classes, Room{corev1.ResourceName(kata): 40}},
		{"all labels are gone", aNode(nil), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"the class was deleted", aNode(ready), three, nil, Room{corev1.ResourceName(kata): 3}},
		{"the node is not ready", notReady(aNode(ready)), three, classes, Room{corev1.ResourceName(kata): 3}},
		{"the node has no status", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: ready}}, three, classes, Room{corev1.ResourceName(kata): 3}},
		{"pods that ended", aNode(gone), append(ended(of("kata", 2, kata), corev1.PodSucceeded), append(ended(of("kata", 2, kata), corev1.PodFailed), three...)...), classes, Room{corev1.ResourceName(kata): 3}},
		{"pods that are older than the resource", aNode(ready), append(of("kata-small", 5), three...), classes, Room{corev1.ResourceName(kata): 35}},
		{"more pods older than the resource than max-pods", aNode(ready), append(of("kata-small", 50), three...), classes, Room{corev1.ResourceName(kata): 3}},
		{"pods of another handler", aNode(ready), append(of("std", 5), three...), Classes{"kata": "kata", "std": "runc"}, Room{corev1.ResourceName(kata): 40}},
		{"pods without a class", aNode(ready), append([]*corev1.Pod{{}}, three...), classes, Room{corev1.ResourceName(kata): 40}},
		{"pods without a class, and the default handler", aNode(with(nodelabel.Default("kata"), nodelabel.True)), append([]*corev1.Pod{{}, {}}, three...), classes, Room{corev1.ResourceName(kata): 38}},
		{"more pods without a class than max-pods, and the default handler", aNode(with(nodelabel.Default("kata"), nodelabel.True)), slices.Concat(slices.Repeat([]*corev1.Pod{{}}, 50), three), classes, Room{corev1.ResourceName(kata): 3}},
		{"another handler is the default", aNode(with(nodelabel.Default("runc"), nodelabel.True)), append([]*corev1.Pod{{}}, three...), classes, Room{corev1.ResourceName(kata): 40}},
		{"two handlers", aNode(with(nodelabel.Present("runc"), nodelabel.True)), three, Classes{"kata": "kata", "std": "runc"}, Room{corev1.ResourceName(kata): 40, corev1.ResourceName(runc): 0}},
		{"a pod with resources of two handlers", aNode(gone), of("kata", 1, kata, runc), classes, Room{corev1.ResourceName(kata): 1, corev1.ResourceName(runc): 1}},
	} {
		if got := roomOf(c.node, slim(c.pods, ByStatus), c.classes); !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.what, got, c.want)
		}
	}
}

// Running pods are counted as the scheduler counts them.
func TestCounting(t *testing.T) {
	kata := corev1.ResourceName(nodelabel.Pods("kata"))
	classes := Classes{"kata": "kata"}
	pods := of("kata", 3, string(kata))
	for _, p := range pods[:2] { // as kubelets of 1.37 report running pods
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
		test.Equal(t, c.what, roomOf(c.node, slim(pods, c.counting), classes)[kata], c.want)
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
		{"not copied by the kubelet yet", Room{kata: 3}, having("3", "40"), set},
		{"not allocatable", Room{kata: 3}, having("3", ""), set},
		{"less", Room{kata: 3}, having("40", "40"), set},
		{"gone", Room{}, having("40", "40"), both(`"` + string(kata) + `":null`)},
		{"only allocatable", Room{}, having("", "40"), both(`"` + string(kata) + `":null`)},
		{"one new, one gone", Room{runc: 1}, having("40", "40"), both(`"` + string(kata) + `":null,"` + string(runc) + `":"1"`)},
	} {
		got := string(c.room.patch(c.node))
		test.Equal(t, c.what, got, c.want)
		if got != "" && !json.Valid([]byte(got)) {
			t.Errorf("%s: the patch is not JSON", c.what)
		}
	}
}

// Before a patch lowers a capacity, the node is read again. lowers is whether a patch does.
func TestLowers(t *testing.T) {
	kata := corev1.ResourceName(nodelabel.Pods("kata"))
	n := aNode(nil)
	n.Status.Capacity[kata] = resource.MustParse("3")
	n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	for _, c := range []struct {
		what string
		room Room
		node *corev1.Node
		want bool
	}{
		{"less", Room{kata: 2}, n, true},
		{"gone", Room{}, n, true},
		{"as it is", Room{kata: 3}, n, false},
		{"more", Room{kata: 4}, n, false},
		{"new", Room{kata: 0}, aNode(nil), false},
	} {
		test.Equal(t, c.what, c.room.lowers(c.node), c.want)
	}
}

// Requests of containers count for their pod, too: the scheduler and the kubelet add them.
func TestContainersThatAsk(t *testing.T) {
	kata := corev1.ResourceName(nodelabel.Pods("kata"))
	asks := func(pods string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{kata: resource.MustParse(pods), corev1.ResourceCPU: resource.MustParse("1")}}
	}
	container := func(pods string) []corev1.Container {
		return []corev1.Container{{Name: "main", Resources: asks(pods)}}
	}
	always := corev1.ContainerRestartPolicyAlways
	ofClass := of("kata", 1, string(kata))[0]
	ofClass.Spec.Containers = container("5")
	running := of("kata", 1, string(kata))[0]
	running.Spec.Containers = container("5")
	running.Status.AllocatedResources = corev1.ResourceList{kata: resource.MustParse("6")}
	running.Status.Resources = &corev1.ResourceRequirements{Requests: running.Status.AllocatedResources}
	open := map[string]string{nodelabel.Handler("kata"): nodelabel.Ready, nodelabel.Present("kata"): nodelabel.True, nodelabel.MaxPods("kata"): "10"}
	for _, c := range []struct {
		what            string
		pod             *corev1.Pod
		byStatus, once  int64 // on a node with three more pods whose handler accepts no pods
		openTo, openFor int64 // on a node with three more pods whose handler accepts ten, by status and once
	}{
		{"none", &corev1.Pod{}, 3, 3, 10, 10},
		{"without a class", &corev1.Pod{Spec: corev1.PodSpec{Containers: container("5")}}, 8, 8, 15, 15},
		{"of the class", ofClass, 9, 9, 15, 15},
		{"of the class, running", running, 10, 9, 16, 15},
		{"in an init container", &corev1.Pod{Spec: corev1.PodSpec{InitContainers: container("5")}}, 8, 8, 15, 15},
		{"in a sidecar, too", &corev1.Pod{Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "beside", Resources: asks("2"), RestartPolicy: &always}}, Containers: container("5"),
		}}, 10, 10, 17, 17},
		{"more than fits in a number", &corev1.Pod{Spec: corev1.PodSpec{Containers: container("9223372036854775807")}}, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64},
	} {
		pods := append(of("kata", 3, string(kata)), c.pod)
		for _, on := range []struct {
			labels   map[string]string
			counting Counting
			want     int64
		}{
			{map[string]string{nodelabel.Present("kata"): nodelabel.True}, ByStatus, c.byStatus},
			{map[string]string{nodelabel.Present("kata"): nodelabel.True}, Once, c.once},
			{open, ByStatus, c.openTo},
			{open, Once, c.openFor},
		} {
			test.Equal(t, fmt.Sprintf("%s, %s, on a node with the labels %v", c.what, on.counting, on.labels), roomOf(aNode(on.labels), slim(pods, on.counting), Classes{"kata": "kata"})[kata], on.want)
		}
	}
}

// slimNode keeps only what the controller uses of a node.
func TestSlimNode(t *testing.T) {
	kata := corev1.ResourceName(nodelabel.Pods("kata"))
	n := aNode(map[string]string{nodelabel.Handler("kata"): nodelabel.Ready, "topology.kubernetes.io/zone": "a"})
	n.Status.Capacity[kata], n.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("3"), resource.MustParse("8")
	n.Status.Allocatable = corev1.ResourceList{kata: resource.MustParse("2")}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure})
	o := test.Value(slimNode(n))(t)
	got := o.(*corev1.Node)
	pods, capacity, allocatable := got.Status.Capacity[corev1.ResourcePods], got.Status.Capacity[kata], got.Status.Allocatable[kata]
	if len(got.Labels) != 1 || len(got.Status.Capacity) != 2 || pods.Value() != 110 || capacity.Value() != 3 || allocatable.Value() != 2 || len(got.Status.Conditions) != 1 || !ready(got) {
		t.Errorf("slimNode keeps %+v", got)
	}
}
