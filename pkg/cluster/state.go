package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// State is what an API server has. Whatever is left out is not looked at.
type State struct {
	Nodes []corev1.Node
}

const notReady = "not-ready"

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

func has(n *corev1.Node, handler string) bool {
	return slices.ContainsFunc(n.Status.RuntimeHandlers, func(h corev1.NodeRuntimeHandler) bool { return h.Name == handler })
}

func ready(n *corev1.Node) bool {
	c := condition(n)
	return c != nil && c.Status == corev1.ConditionTrue
}

func condition(n *corev1.Node) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == corev1.NodeReady {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}
