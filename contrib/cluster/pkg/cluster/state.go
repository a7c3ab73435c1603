// Package cluster decides about the handlers of a whole cluster by what its API
// server has: nodes, RuntimeClasses, pods and events.
//
//	state := &cluster.State{Nodes: nodes, Classes: classes, Pods: pods, Events: events}
//	handlers := cluster.Handlers(state)              // what its nodes report
//	findings := cluster.Audit(state)
//	fit := cluster.Fit(pod, state, cluster.FitOptions{})
//
// It is pure: objects go in, values come out. Who asks the API server is
// cmd/kubectl-berth, and what RuntimeClasses mean is in pkg/runtimeclass.
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

// State is what an API server has. Whatever is left out is not looked at.
type State struct {
	Nodes   []corev1.Node
	Classes []nodev1.RuntimeClass
	// Pods are those that have not ended.
	Pods []corev1.Pod
	// Events are about sandboxes that could not be made.
	Events []corev1.Event
}

// handlerNames are those of all nodes, sorted. The default handler has none.
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

// reports says whether a node says what handlers it has. Kubelets before 1.30, and
// those whose CRI daemon does not say it, report none at all.
func reports(n *corev1.Node) bool { return len(n.Status.RuntimeHandlers) > 0 }

func has(n *corev1.Node, handler string) bool {
	return slices.ContainsFunc(n.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool { return h.Name == handler })
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// selects says whether pods of a class may be put on a node, as far as the node
// selector and the tolerations of the class go.
func selects(c *nodev1.RuntimeClass, n *corev1.Node) bool {
	by := cmp.Or(c.Scheduling, &nodev1.Scheduling{})
	_, kept := untolerated(n, by.Tolerations)
	return !kept && missing(by.NodeSelector, n) == ""
}

// untolerated is a taint of a node that keeps pods with these tolerations away. Those that
// Kubernetes sets because a node is ill or cordoned do not count: they come and go.
func untolerated(n *corev1.Node, by []corev1.Toleration) (corev1.Taint, bool) {
	return helpers.FindMatchingUntoleratedTaint(logr.Discard(), n.Spec.Taints, by, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && !strings.HasPrefix(t.Key, "node.kubernetes.io/")
	}, true)
}
