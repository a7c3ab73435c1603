// Package capacity tells the scheduler how many pods of each handler a node has room
// for: as capacity of a resource of which each pod of the handler's classes has one.
//
//	err := capacity.Run(ctx, client, capacity.ByStatus, metrics) // until ctx is over
//
// A handler that takes pods has room for its max_pods. One that does not has room for
// the pods there are, and never for less: a kubelet that starts ends pods that do not
// fit. Which handlers take pods is read from the nodes' labels. What containers ask for
// by themselves, which no class does, is room that their pod takes from nobody else.
package capacity

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// Room is the capacity of a node, by resource: what its pods take, and one for each pod
// more.
type Room map[corev1.ResourceName]int64

// Classes are the handlers of RuntimeClasses, by the name of the class.
type Classes map[string]string

// RoomOf is that of a node with these pods. Handlers without a class have none: no pod
// asks for it. Pure.
func RoomOf(n *corev1.Node, pods []*Pod, classes Classes) Room {
	room, having, others := taken(pods, classes)
	for _, handler := range slices.Compact(slices.Sorted(maps.Values(classes))) {
		name := corev1.ResourceName(nodelabel.Pods(handler))
		takesPods := n.Labels[nodelabel.Handler(handler)] == nodelabel.Ready
		if _, there := room[name]; !there && !takesPods && n.Labels[nodelabel.Present(handler)] != nodelabel.True {
			continue
		}
		free := int64(0) // it is there, and full
		if takesPods && ready(n) {
			free = max(0, most(n, handler)-sum(others.of(n, handler), having[name]))
		}
		room[name] = sum(room[name], free)
	}
	return room
}

// Counting is how the cluster's scheduler and kubelets add up what pods have.
type Counting string

// Countings.
const (
	// ByStatus is that of Kubernetes 1.36 and 1.37: they add overhead to what a pod's status
	// says is allocated, which has it already, so that a pod that runs takes twice what one
	// takes that is starting (kubernetes/kubernetes issue 139627). Where kubelets do not say
	// what is allocated it is Once.
	ByStatus Counting = "by-status"
	// Once is as it should be.
	Once Counting = "once"
)

// of is what a pod takes: for its overhead, and what its containers ask for.
func (c Counting) of(p *corev1.Pod) corev1.ResourceList {
	status := c != Once
	return helpers.PodRequests(p, helpers.PodResourcesOptions{UseStatusResources: status, InPlacePodLevelResourcesVerticalScalingEnabled: status})
}

// uncounted are pods that have none of the resource.
type uncounted struct {
	// older are those of each handler whose class got the resource later, or has none.
	older map[string]int64
	// classless have no class, and so the default handler.
	classless int64
}

// of is how many a handler of the node has.
func (u uncounted) of(n *corev1.Node, handler string) int64 {
	pods := u.older[handler]
	if n.Labels[nodelabel.Default(handler)] == nodelabel.True {
		pods += u.classless
	}
	return pods
}

// taken is what pods take, how many have some of it for their class, and how many have none.
func taken(pods []*Pod, classes Classes) (room, having Room, others uncounted) {
	room, having, others = Room{}, Room{}, uncounted{older: map[string]int64{}}
	for _, p := range pods {
		if p.ended {
			continue
		}
		for _, t := range p.takes {
			room[t.of] = sum(room[t.of], t.pods)
		}
		for _, h := range p.has {
			having[h.of] = sum(having[h.of], h.pods)
		}
		switch {
		case len(p.has) > 0:
		case p.class == "":
			others.classless++
		default:
			others.older[classes[p.class]]++
		}
	}
	return room, having, others
}

// sum is bounded: a container may ask for as many as a number can be.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
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
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// lowers reports whether a node's status has more of something than this. Pure.
func (r Room) lowers(n *corev1.Node) bool {
	for _, has := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
		for name, q := range has {
			if pods, wanted := r[name]; nodelabel.IsPods(string(name)) && (!wanted || q.Value() > pods) {
				return true
			}
		}
	}
	return false
}

// patch is what makes a node's status this, or nil if it is. The kubelet would copy capacity
// to allocatable by itself, some seconds later. Pure.
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
