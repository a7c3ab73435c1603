// Package capacity sets how many pods of each handler a node has room for. The number is the node's
// capacity of a resource. Each pod of the handler's classes requests 1 of this resource, so the
// scheduler counts the pods.
//
//	err := capacity.Run(ctx, client, capacity.ByStatus, metrics) // until ctx is over
//
// A handler that takes pods has room for its max_pods. A handler that takes no pods has room for
// its present pods. The present pods of a handler always have room, because a restarted kubelet ends
// pods that do not fit. The nodes' labels show which handlers take pods. A container can also
// request the resource. The capacity then grows by this request, so that other pods keep their room.
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

// Room maps a resource to the capacity of a node. The capacity is the sum of the requests of the
// node's pods, and 1 for each further pod that the node accepts.
type Room map[corev1.ResourceName]int64

// Classes maps the names of RuntimeClasses to their handlers.
type Classes map[string]string

// roomOf computes the room of a node with these pods. A handler without a class has room only for
// the requests of its pods. Pure.
func roomOf(n *corev1.Node, pods []*Pod, classes Classes) Room {
	room, having, others := taken(pods, classes)
	for _, handler := range slices.Compact(slices.Sorted(maps.Values(classes))) {
		name := corev1.ResourceName(nodelabel.Pods(handler))
		takesPods := n.Labels[nodelabel.Handler(handler)] == nodelabel.Ready
		if _, there := room[name]; !there && !takesPods && n.Labels[nodelabel.Present(handler)] != nodelabel.True {
			continue
		}
		free := int64(0) // if the handler takes no pods
		if takesPods && ready(n) {
			free = max(0, most(n, handler)-sum(others.of(n, handler), having[name]))
		}
		room[name] = sum(room[name], free)
	}
	return room
}

// Counting is how the cluster's scheduler and kubelets add up the requests of pods.
type Counting string

// Countings.
const (
	// ByStatus is for Kubernetes 1.36 and 1.37, which count the overhead of a running pod twice
	// (kubernetes/kubernetes issue 139627). They add the overhead to the allocated resources in the
	// pod's status, but these already include the overhead. If kubelets do not report allocated
	// resources, ByStatus equals Once.
	ByStatus Counting = "by-status"
	// Once counts overhead once, which is correct.
	Once Counting = "once"
)

// of returns a pod's requests: its overhead and the requests of its containers.
func (c Counting) of(p *corev1.Pod) corev1.ResourceList {
	status := c != Once
	return helpers.PodRequests(p, helpers.PodResourcesOptions{UseStatusResources: status, InPlacePodLevelResourcesVerticalScalingEnabled: status})
}

// uncounted counts pods that do not have the resource in their overhead.
type uncounted struct {
	// older counts such pods with a class, by handler. The class lacks the resource, or got the
	// resource after the pod was created.
	older map[string]int64
	// classless counts such pods without a class. These pods have the default handler.
	classless int64
}

// of returns the number of a handler's uncounted pods on the node.
func (u uncounted) of(n *corev1.Node, handler string) int64 {
	pods := u.older[handler]
	if n.Labels[nodelabel.Default(handler)] == nodelabel.True {
		pods += u.classless
	}
	return pods
}

// taken returns the requests of pods (room), the requests that come from their classes (having),
// and the uncounted pods (others).
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

// sum adds two numbers. If the sum overflows, it returns the largest number: a container may
// request any number.
func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// most returns the limit of a handler's pods, or else the limit of all pods of the node.
func most(n *corev1.Node, handler string) int64 {
	if label, there := n.Labels[nodelabel.MaxPods(handler)]; there {
		if n, err := strconv.ParseInt(label, 10, 32); err == nil && n > 0 {
			return n
		}
	}
	return n.Status.Capacity.Pods().Value()
}

// ready reports whether the node is Ready. If the kubelet or berth does not answer, the node is not
// Ready, and its labels are stale.
func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// lowers reports whether r has a smaller number for any resource than a node's status. Pure.
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

// patch returns the change of a node's status to r, or nil if nothing changes. The change includes
// allocatable, because the kubelet would update allocatable only seconds later. Pure.
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
		panic(err) // names and numbers can be encoded
	}
	return body
}
