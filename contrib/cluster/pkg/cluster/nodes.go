package cluster

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/pkg/nodelabel"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Node is what a node says of its handlers, and what it lacks.
type Node struct {
	Name  string `json:"name"`
	Ready bool   `json:"ready"`
	// Reason says why it is not ready.
	Reason   string `json:"reason,omitempty"`
	Cordoned bool   `json:"cordoned,omitempty"`
	// Runtime and Kubelet are versions.
	Runtime string `json:"runtime,omitempty"`
	Kubelet string `json:"kubelet,omitempty"`
	// Reports: it says which handlers it has. Of one that does not, nothing is known.
	Reports  bool          `json:"reports"`
	Handlers []NodeHandler `json:"handlers"`
	// Labels are those about handlers.
	Labels map[string]string `json:"labels,omitempty"`
	Gaps   []Gap             `json:"gaps,omitempty"`
}

// NodeHandler is a handler that a node has.
type NodeHandler struct {
	// Name is empty for the node's default, which pods without a class get.
	Name string `json:"name"`
	// Features are capabilities that the node says it has.
	Features []capability.Name `json:"features,omitempty"`
	// Labelled: the node has the label of the handler.
	Labelled bool `json:"labelled"`
	// Classes lead there.
	Classes []string `json:"classes,omitempty"`
}

// Gap is a handler that a node lacks.
type Gap struct {
	Handler string `json:"handler"`
	// Nodes is how many others have it.
	Nodes int `json:"nodes"`
	// Classes have this handler and select the node: pods of them never start there.
	Classes []string `json:"classes,omitempty"`
	// Labelled: the node has the label of the handler all the same.
	Labelled bool `json:"labelled,omitempty"`
}

// Nodes are the nodes of a cluster in their order, with gaps by handler.
func Nodes(s *State) []Node {
	candidates := map[string]bool{}
	for _, name := range s.handlerNames() {
		candidates[name] = true
	}
	for i := range s.Classes {
		candidates[s.Classes[i].Handler] = true
	}
	having := map[string]int{}
	for i := range s.Nodes {
		for name := range candidates {
			if has(&s.Nodes[i], name) {
				having[name]++
			}
		}
	}
	all := []Node{}
	for i := range s.Nodes {
		all = append(all, s.node(&s.Nodes[i], slices.Sorted(maps.Keys(candidates)), having))
	}
	return all
}

func (s *State) node(n *corev1.Node, candidates []string, having map[string]int) Node {
	one := Node{
		Name: n.Name, Ready: ready(n), Cordoned: n.Spec.Unschedulable, Reports: reports(n), Handlers: []NodeHandler{},
		Runtime: n.Status.NodeInfo.ContainerRuntimeVersion, Kubelet: n.Status.NodeInfo.KubeletVersion,
	}
	if !one.Ready {
		one.Reason = whyNot(n)
	}
	for key, value := range n.Labels {
		if strings.HasPrefix(key, nodelabel.Prefix+"handler.") {
			if one.Labels == nil {
				one.Labels = map[string]string{}
			}
			one.Labels[key] = value
		}
	}
	for _, h := range n.Status.RuntimeHandlers {
		one.Handlers = append(one.Handlers, NodeHandler{h.Name, features(h), labelled(n, h.Name), s.classesOf(h.Name)})
	}
	slices.SortFunc(one.Handlers, func(a, b NodeHandler) int { return strings.Compare(a.Name, b.Name) })
	if !one.Reports {
		return one
	}
	for _, name := range candidates {
		g := Gap{Handler: name, Nodes: having[name], Labelled: labelled(n, name)}
		for i := range s.Classes {
			if c := &s.Classes[i]; c.Handler == name && selects(c, n) && !closedTo(n, c) {
				g.Classes = append(g.Classes, c.Name)
			}
		}
		if !has(n, name) && (g.Nodes > 0 || len(g.Classes) > 0 || g.Labelled) {
			one.Gaps = append(one.Gaps, g)
		}
	}
	return one
}

func labelled(n *corev1.Node, handler string) bool {
	return handler != "" && n.Labels[nodelabel.Handler(handler)] == nodelabel.Ready
}

// features are what Kubernetes knows of handlers.
func features(h corev1.NodeRuntimeHandler) []capability.Name {
	var all []capability.Name
	if h.Features == nil {
		return nil
	}
	if yes := h.Features.RecursiveReadOnlyMounts; yes != nil && *yes {
		all = append(all, capability.RecursiveReadOnlyMounts)
	}
	if yes := h.Features.UserNamespaces; yes != nil && *yes {
		all = append(all, capability.UserNamespaces)
	}
	return all
}
