package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// Handlers returns the handlers that the nodes of a cluster report, by name, each once. A handler
// without a ready node is not ready. The nameless entry of a node's default handler is omitted.
func Handlers(s *State) []runtimeclass.Handler {
	var all []runtimeclass.Handler
	for _, name := range s.handlerNames() {
		h := runtimeclass.Handler{Name: name, State: "not-ready", Reason: "no node with this handler is ready"}
		switch {
		case !nameable(name):
			h.State, h.Reason = "not a valid class name", ""
		case slices.ContainsFunc(s.Nodes, func(n corev1.Node) bool { return has(&n, name) && ready(&n) }):
			h.State, h.Reason = runtimeclass.Ready, ""
		}
		all = append(all, h)
	}
	return all
}

// Keep copies to c, from the existing class of its name and handler, what nodes do not report:
// annotations about the handler, and overhead, each only if c has none. Applying c would otherwise
// remove them. Keep reports whether it copied overhead.
func Keep(c *nodev1.RuntimeClass, there []nodev1.RuntimeClass) bool {
	i := slices.IndexFunc(there, func(t nodev1.RuntimeClass) bool { return t.Name == c.Name && t.Handler == c.Handler })
	if i < 0 {
		return false
	}
	if kept := known(there[i].Annotations); len(kept) > 0 && len(known(c.Annotations)) == 0 {
		maps.Copy(kept, c.Annotations)
		c.Annotations = kept
	}
	overhead := costs(there[i].Overhead)
	if len(overhead) == 0 || len(costs(c.Overhead)) > 0 {
		return false
	}
	if c.Overhead != nil {
		maps.Copy(overhead, c.Overhead.PodFixed)
	}
	c.Overhead = &nodev1.Overhead{PodFixed: overhead}
	return true
}

// known returns the annotations about a handler.
func known(annotations map[string]string) map[string]string {
	all := maps.Clone(annotations)
	maps.DeleteFunc(all, func(key, _ string) bool { return !slices.Contains(runtimeclass.Annotations, key) })
	return all
}

// costs returns an overhead without the resource that counts pods.
func costs(o *nodev1.Overhead) corev1.ResourceList {
	if o == nil {
		return nil
	}
	all := maps.Clone(o.PodFixed)
	maps.DeleteFunc(all, func(name corev1.ResourceName, _ resource.Quantity) bool { return nodelabel.IsPods(string(name)) })
	return all
}

// nameable reports whether a class can name a handler: CRI daemons allow more names than classes.
func nameable(handler string) bool { return len(validation.IsDNS1123Label(handler)) == 0 }

// Unlabelled reports whether pods of a class stay pending because it selects a label of its handler
// that no node has.
func Unlabelled(c *nodev1.RuntimeClass, nodes []corev1.Node) bool {
	if c.Scheduling == nil {
		return false
	}
	for _, key := range []string{nodelabel.Handler(c.Handler), nodelabel.Present(c.Handler)} {
		want, selects := c.Scheduling.NodeSelector[key]
		if selects && !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Labels[key] == want }) {
			return true
		}
	}
	return false
}

// Uncounted reports whether pods of a class stay pending because they request a resource that no
// node has. berth-controller sets the capacity.
func Uncounted(c *nodev1.RuntimeClass, nodes []corev1.Node) bool {
	return runtimeclass.Counted(c) && !slices.ContainsFunc(nodes, func(n corev1.Node) bool {
		_, there := n.Status.Capacity[corev1.ResourceName(nodelabel.Pods(c.Handler))]
		return there
	})
}
