package cluster

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-cri/berth/pkg/nodelabel"
	"github.com/berth-cri/berth/pkg/runtimeclass"
)

// Effect is what an apply does to an object, in kubectl's words.
type Effect string

// Effects.
const (
	Created    Effect = "created"
	Configured Effect = "configured"
	Unchanged  Effect = "unchanged"
	Pruned     Effect = "pruned"
)

// Compare says what was done to an object that was before (nil if there was none) and
// is after. Who owns which field, and what the server counts or says, is no change.
func Compare(before, after *unstructured.Unstructured) Effect {
	switch {
	case before == nil:
		return Created
	case equality.Semantic.DeepEqual(Bare(before).Object, Bare(after).Object):
		return Unchanged
	}
	return Configured
}

// Bare is an object without what only the server writes. It can be created again.
func Bare(o *unstructured.Unstructured) *unstructured.Unstructured {
	bare := o.DeepCopy()
	delete(bare.Object, "status")
	for _, field := range []string{"managedFields", "resourceVersion", "uid", "generation", "creationTimestamp"} {
		unstructured.RemoveNestedField(bare.Object, "metadata", field)
	}
	return bare
}

// Handlers are those that the nodes of a cluster report, by name, each once. Those
// that no ready node has are not ready. The node's default, which pods without a
// class get, has no name of its own and is not among them.
func Handlers(s *State) []runtimeclass.Handler {
	var all []runtimeclass.Handler
	for _, name := range s.handlerNames() {
		h := runtimeclass.Handler{Name: name, State: notReady, Reason: "no node with it is ready"}
		if !nameable(name) {
			h.State, h.Reason = "not a valid class name", ""
			all = append(all, h)
			continue
		}
		for i := range s.Nodes {
			if n := &s.Nodes[i]; has(n, name) && ready(n) {
				h.State, h.Reason = runtimeclass.Ready, ""
				break
			}
		}
		all = append(all, h)
	}
	return all
}

// KeepKnown gives a class that was made without knowing anything of its handler what the
// class that is there says of it. An apply would take it away, and policies that are made of
// it would no longer refuse anything.
func KeepKnown(c *nodev1.RuntimeClass, there []nodev1.RuntimeClass) {
	i := slices.IndexFunc(there, func(t nodev1.RuntimeClass) bool { return t.Name == c.Name && t.Handler == c.Handler })
	if i < 0 {
		return
	}
	known := map[string]string{}
	for _, key := range runtimeclass.Annotations {
		if _, said := c.Annotations[key]; said {
			return
		}
		if value, said := there[i].Annotations[key]; said {
			known[key] = value
		}
	}
	if len(known) > 0 {
		maps.Copy(known, c.Annotations)
		c.Annotations = known
	}
}

// KeepOverhead gives a class that was made without a measurement the overhead of the class that
// is there, and says what that is: an apply would take it away, and pods would be put on nodes
// that have no room for them.
func KeepOverhead(c *nodev1.RuntimeClass, there []nodev1.RuntimeClass) corev1.ResourceList {
	i := slices.IndexFunc(there, func(t nodev1.RuntimeClass) bool { return t.Name == c.Name && t.Handler == c.Handler })
	if i < 0 || there[i].Overhead == nil || len(costs(c.Overhead)) > 0 {
		return nil
	}
	kept := costs(there[i].Overhead)
	if len(kept) == 0 {
		return nil
	}
	all := maps.Clone(kept)
	if c.Overhead != nil {
		maps.Copy(all, c.Overhead.PodFixed)
	}
	c.Overhead = &nodev1.Overhead{PodFixed: all}
	return kept
}

// costs are an overhead without what only counts pods.
func costs(o *nodev1.Overhead) corev1.ResourceList {
	if o == nil {
		return nil
	}
	all := maps.Clone(o.PodFixed)
	maps.DeleteFunc(all, func(name corev1.ResourceName, _ resource.Quantity) bool { return nodelabel.IsPods(string(name)) })
	return all
}

// nameable says whether classes can have a handler: CRI daemons allow more names.
func nameable(handler string) bool { return len(validation.IsDNS1123Label(handler)) == 0 }

// Unlabelled says whether a class selects nodes by a label of its handler although
// no node has that label: then its pods stay pending.
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

// Uncounted says whether pods of a class have one of a resource that no node has: then
// they stay pending, until somebody sets its capacity.
func Uncounted(c *nodev1.RuntimeClass, nodes []corev1.Node) bool {
	return runtimeclass.Counted(c) && !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return counts(&n, c.Handler) })
}

// counts says whether it is known how many pods of a handler a node has room for.
func counts(n *corev1.Node, handler string) bool {
	_, there := n.Status.Capacity[corev1.ResourceName(nodelabel.Pods(handler))]
	return there
}

// Undo is how an object gets back to what it was before an apply.
type Undo string

// Ways to undo.
const (
	// Nothing: the apply did not change it.
	Nothing Undo = "nothing"
	// Delete: there was none.
	Delete Undo = "delete"
	// Restore: there was another.
	Restore Undo = "restore"
	// Leave: somebody else had a part in what it is now.
	Leave Undo = "leave"
)

// HowToUndo says how, for an object that was before (nil if there was none) and is
// after an apply by a field manager. Created says that this apply has created it: what
// another one with the same manager created meanwhile looks alike.
func HowToUndo(before, after *unstructured.Unstructured, created bool, manager string) Undo {
	switch {
	case after == nil:
		return Nothing
	case before == nil && created && onlyBy(after, manager):
		return Delete
	case before == nil || before.GetUID() != after.GetUID():
		return Leave
	case before.GetResourceVersion() == after.GetResourceVersion():
		return Nothing
	}
	return Restore
}

// onlyBy says whether nobody but a manager has ever applied something to an object. What
// controllers say of it, in its status, does not count.
func onlyBy(o *unstructured.Unstructured, manager string) bool {
	for _, m := range o.GetManagedFields() {
		if m.Subresource != "status" && (m.Manager != manager || m.Operation != metav1.ManagedFieldsOperationApply) {
			return false
		}
	}
	return true
}
