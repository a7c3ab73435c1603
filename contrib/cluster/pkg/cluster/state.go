// Package cluster checks the handlers of a whole cluster by its API objects: nodes, RuntimeClasses,
// pods and events.
//
//	state := &cluster.State{Nodes: nodes, Classes: classes, Pods: pods, Events: events}
//	handlers := cluster.Handlers(state)              // what its nodes report
//	findings := cluster.Audit(state)
//	fit := cluster.Fit(pod, state, cluster.FitOptions{})
//
// It is pure: cmd/kubectl-berth reads the objects from the API server. The semantics of
// RuntimeClasses are in pkg/runtimeclass.
package cluster

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	helpers "k8s.io/component-helpers/scheduling/corev1"
)

// State holds objects of an API server. Only Audit uses Pods and Events.
type State struct {
	Nodes   []corev1.Node
	Classes []nodev1.RuntimeClass
	// Pods are unfinished pods.
	Pods []corev1.Pod
	// Events are about failed sandboxes.
	Events []corev1.Event
}

// handlerNames returns the names of the handlers of all nodes, sorted. The entry with an empty
// name, which repeats the default handler, is left out.
func (s *State) handlerNames() []string {
	names := map[string]bool{}
	for i := range s.Nodes {
		for _, h := range s.Nodes[i].Status.RuntimeHandlers {
			if h.Name != "" {
				names[h.Name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func (s *State) class(name string) *nodev1.RuntimeClass {
	if i := slices.IndexFunc(s.Classes, func(c nodev1.RuntimeClass) bool { return c.Name == name }); i >= 0 {
		return &s.Classes[i]
	}
	return nil
}

func (s *State) classesOf(handler string) []string {
	var all []string
	for i := range s.Classes {
		if s.Classes[i].Handler == handler {
			all = append(all, s.Classes[i].Name)
		}
	}
	return all
}

// reports reports whether a node lists its handlers. Kubelets before 1.31 list none. Newer kubelets
// list none if their CRI daemon does not report handlers.
func reports(n *corev1.Node) bool { return len(n.Status.RuntimeHandlers) > 0 }

func has(n *corev1.Node, handler string) bool {
	return slices.ContainsFunc(n.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool { return h.Name == handler })
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// selects reports whether the node selector and the tolerations of a class admit a node.
func selects(c *nodev1.RuntimeClass, n *corev1.Node) bool {
	by := cmp.Or(c.Scheduling, &nodev1.Scheduling{})
	_, kept := untolerated(n, by.Tolerations)
	return !kept && missing(by.NodeSelector, n) == ""
}

// untolerated returns a taint of a node that pods with these tolerations do not tolerate. It
// ignores PreferNoSchedule and all taints of node.kubernetes.io/, which Kubernetes sets on unhealthy
// or cordoned nodes.
func untolerated(n *corev1.Node, by []corev1.Toleration) (corev1.Taint, bool) {
	return helpers.FindMatchingUntoleratedTaint(logr.Discard(), n.Spec.Taints, by, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/")
	}, true)
}
