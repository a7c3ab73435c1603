// Package capacity tells the scheduler how many pods of each handler a node has room
// for: as capacity of a resource of which each pod of the handler's classes has one.
//
//	err := capacity.Run(ctx, core, classes) // until ctx is over
//
// A handler that takes pods has room for its max_pods. One that does not has room for
// the pods there are, and never for less: a kubelet that starts ends pods that do not
// fit. Which handlers take pods is read from the nodes' labels.
package capacity

import (
	"encoding/json"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// Room is for how many pods a node has room, by resource, those that it has included.
type Room map[corev1.ResourceName]int64

// Classes are the handlers of RuntimeClasses, by the name of the class.
type Classes map[string]string

// RoomOf is that of a node with these pods. Handlers without a class have none: no pod
// asks for it. Pure.
func RoomOf(n *corev1.Node, pods []*corev1.Pod, classes Classes) Room {
	room, others := taken(pods, classes)
	for handler := range handlersOf(classes) {
		name := corev1.ResourceName(nodelabel.Pods(handler))
		takesPods := n.Labels[nodelabel.Handler(handler)] == nodelabel.Ready
		if _, there := room[name]; !there && !takesPods && n.Labels[nodelabel.Present(handler)] != nodelabel.True {
			continue
		}
		if takesPods && ready(n) {
			room[name] = max(room[name], most(n, handler)-others[handler])
		} else {
			room[name] += 0 // it is there, and full
		}
	}
	return room
}

// taken is what pods have, and how many of each handler have none of it, for they are
// older than it or of another class.
func taken(pods []*corev1.Pod, classes Classes) (room Room, others map[string]int64) {
	room, others = Room{}, map[string]int64{}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		counted := false
		for name, q := range p.Spec.Overhead {
			if nodelabel.IsPods(string(name)) {
				room[name] += q.Value()
				counted = true
			}
		}
		if class := p.Spec.RuntimeClassName; class != nil && !counted {
			others[classes[*class]]++
		}
	}
	return room, others
}

func handlersOf(classes Classes) map[string]bool {
	all := map[string]bool{}
	for handler := range maps.Values(classes) {
		all[handler] = true
	}
	return all
}

// most is how many pods a handler takes, or else how many its node does.
func most(n *corev1.Node, handler string) int64 {
	if label, there := n.Labels[nodelabel.MaxPods(handler)]; there {
		if n, err := strconv.ParseInt(label, 10, 32); err == nil && n > 0 {
			return n
		}
	}
	return n.Status.Capacity.Pods().Value()
}

// ready says whether the node is. One whose kubelet or berth does not answer is not, and
// its labels say what was.
func ready(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// patch is what makes a node's status say this, or nil if it does. The kubelet would
// copy capacity to allocatable by itself, some seconds later. Pure.
func (r Room) patch(n *corev1.Node) []byte {
	change := map[corev1.ResourceName]*resource.Quantity{}
	for name, pods := range r {
		has, listed := n.Status.Capacity[name]
		free, allocatable := n.Status.Allocatable[name]
		if !listed || !allocatable || has.Value() != pods || free.Value() != pods {
			change[name] = resource.NewQuantity(pods, resource.DecimalSI)
		}
	}
	for _, has := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
		for name := range has {
			if _, wanted := r[name]; !wanted && nodelabel.IsPods(string(name)) {
				change[name] = nil
			}
		}
	}
	if len(change) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"capacity": change, "allocatable": change}})
	if err != nil {
		panic(err) // names and numbers
	}
	return body
}
