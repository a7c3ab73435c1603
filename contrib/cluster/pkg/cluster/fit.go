package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/nodelabel"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// FitOptions add facts that the API server does not have.
type FitOptions struct {
	// Handlers are all existing handlers; if they are set, nodes are not checked.
	Handlers []runtimeclass.Handler
	// Admitted means that the pod is from the cluster, and has the fields that admission added for
	// its class. Other pods are checked as written.
	Admitted bool
}

// Candidate is a class that a pod could have.
type Candidate struct {
	// Class is empty for a pod without a class, which gets the default handler of its node, and for
	// a handler that no class names.
	Class string `json:"class"`
	// Handler is empty for the default handlers of nodes.
	Handler string `json:"handler"`
	// Own means that the pod has this class.
	Own bool `json:"own,omitempty"`
	// Fits is yes if a node can run the pod, else unknown if this is unknown for a node, else no.
	Fits      capability.Answer    `json:"fits"`
	Isolation capability.Isolation `json:"isolation,omitempty"`
	// Overhead is declared by the class.
	Overhead corev1.ResourceList `json:"overhead,omitempty"`
	// Rejection is the API server's reason to reject a pod of this class.
	Rejection string `json:"rejection,omitempty"`
	// Nodes can run the pod; for MaybeNodes this is unknown.
	Nodes      []string `json:"nodes,omitempty"`
	MaybeNodes []string `json:"maybeNodes,omitempty"`
	// Reasons are why nodes cannot run the pod, or why this is unknown.
	Reasons []Reason `json:"reasons,omitempty"`

	// annotated has the capabilities from the class's annotations.
	annotated capability.Table
}

// Reason is a reason and the nodes that it applies to.
type Reason struct {
	Text  string   `json:"text"`
	Nodes []string `json:"nodes"`
}

func (r Reason) String() string {
	if len(r.Nodes) == 0 {
		return r.Text
	}
	return fmt.Sprintf("%s (%s)", r.Text, runtimeclass.Few(r.Nodes))
}

// Why returns all reasons against a candidate.
func (c Candidate) Why() string {
	if c.Rejection != "" {
		return c.Rejection
	}
	var all []string
	for _, r := range c.Reasons {
		all = append(all, r.String())
	}
	return strings.Join(all, "; ")
}

// Fit returns all candidates for a pod, the preferred ones first. It ignores the current usage of
// nodes.
func Fit(pod *corev1.Pod, s *State, o FitOptions) []Candidate {
	if o.Admitted {
		pod = pod.DeepCopy()
		pod.Spec.NodeName = "" // set by the scheduler
	}
	name, plain := "", pod.DeepCopy()
	if pod.Spec.RuntimeClassName != nil {
		name = *pod.Spec.RuntimeClassName
		if plain.Spec.RuntimeClassName = nil; o.Admitted {
			plain = withoutClass(pod, s.class(name))
		}
	}
	var classes []runtimeclass.Class
	for i := range s.Classes {
		classes = append(classes, runtimeclass.Class{Version: "v1", RuntimeClass: &s.Classes[i]})
	}
	all := []Candidate{s.admitted(Candidate{Own: pod.Spec.RuntimeClassName == nil, annotated: unchosen(classes)}, plain, classes, o)}
	if pod.Spec.RuntimeClassName != nil && s.class(name) == nil {
		all = append(all, Candidate{Class: name, Own: true, Fits: capability.No, Rejection: runtimeclass.Admit(pod, classes).Rejection})
	}
	for _, c := range classes {
		one := Candidate{Class: c.Name, Handler: c.Handler, Own: c.Name == name}
		if h, err := c.Annotated(); err == nil {
			one.annotated = h.Table
		}
		with := plain.DeepCopy()
		with.Spec.RuntimeClassName = &c.Name
		if c.Overhead != nil {
			one.Overhead = c.Overhead.PodFixed
		}
		all = append(all, s.admitted(one, with, classes, o))
	}
	for _, h := range o.Handlers {
		if len(s.classesOf(h.Name)) == 0 && !h.Default {
			all = append(all, s.admitted(Candidate{Handler: h.Name}, plain, classes, o))
		}
	}
	for _, handler := range s.handlerNames() {
		if len(s.classesOf(handler)) == 0 {
			all = append(all, Candidate{Handler: handler, Fits: capability.No, Reasons: []Reason{{"no class uses it", s.having(handler)}}})
		}
	}
	slices.SortStableFunc(all, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(rank(a.Fits), rank(b.Fits)), cmp.Compare(strength(b.Isolation), strength(a.Isolation)),
			// Less declared overhead is preferred.
			a.Overhead.Memory().Cmp(*b.Overhead.Memory()), a.Overhead.Cpu().Cmp(*b.Overhead.Cpu()),
			cmp.Compare(a.Class, b.Class), cmp.Compare(a.Handler, b.Handler))
	})
	return all
}

// unchosen returns the capabilities of the default handler, which pods without a class get. An
// annotation of a class marks this handler. Other nodes may have another default, so a missing
// capability is unknown, as in policies.
func unchosen(classes []runtimeclass.Class) capability.Table {
	for _, c := range classes {
		h, err := c.Annotated()
		if err != nil || !h.Default {
			continue
		}
		h = h.Unchosen()
		h.Isolation = ""
		return h.Table
	}
	return capability.Table{}
}

func rank(a capability.Answer) int {
	return slices.Index([]capability.Answer{capability.Yes, capability.Unknown, capability.No}, a)
}

func strength(i capability.Isolation) int {
	return slices.Index([]capability.Isolation{capability.SharedKernel, capability.UserSpaceKernel, capability.VM}, i)
}

// admitted checks a pod, as admission changes it, against all nodes, or against o.Handlers if set.
func (s *State) admitted(c Candidate, pod *corev1.Pod, classes []runtimeclass.Class, o FitOptions) Candidate {
	a := runtimeclass.Admit(pod, classes)
	if a.Rejection != "" {
		c.Rejection, c.Fits = a.Rejection, capability.No
		return c
	}
	pod = a.Pod
	if o.Handlers != nil {
		return c.among(o.Handlers, pod)
	}
	known := runtimeclass.Handler{Name: c.Handler, Table: c.annotated}.Anywhere()
	c.Isolation = known.Isolation
	affinity, asks := nodeaffinity.GetRequiredNodeAffinity(pod), resource.PodRequests(requesting(pod), resource.PodResourcesOptions{})
	reasons := map[string][]string{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		no, maybe := obstacles(n, pod, known, affinity, asks)
		switch {
		case len(no) > 0:
		case len(maybe) > 0:
			c.MaybeNodes = append(c.MaybeNodes, n.Name)
		default:
			c.Nodes = append(c.Nodes, n.Name)
		}
		for _, text := range slices.Concat(no, maybe) {
			reasons[text] = append(reasons[text], n.Name)
		}
	}
	if len(s.Nodes) == 0 {
		c.Reasons = append(c.Reasons, Reason{Text: "the cluster has no nodes"})
	}
	for _, text := range slices.Sorted(maps.Keys(reasons)) {
		c.Reasons = append(c.Reasons, Reason{text, reasons[text]})
	}
	switch {
	case len(c.Nodes) > 0:
		c.Fits = capability.Yes
	case len(c.MaybeNodes) > 0:
		c.Fits = capability.Unknown
	default:
		c.Fits = capability.No
	}
	return c
}

// among checks a pod against the candidate's handler in a list or, without a handler, the default.
func (c Candidate) among(handlers []runtimeclass.Handler, pod *corev1.Pod) Candidate {
	i := slices.IndexFunc(handlers, func(h runtimeclass.Handler) bool { return h.Name == c.Handler || c.Handler == "" && h.Default })
	switch {
	case i < 0 && c.Handler == "":
		c.Fits, c.Reasons = capability.Unknown, []Reason{{Text: "the list does not name a default handler"}}
	case i < 0:
		c.Fits, c.Reasons = capability.No, []Reason{{Text: fmt.Sprintf("the handler %q is not in the list", c.Handler)}}
	default:
		v := runtimeclass.Fit(pod, handlers[i])
		c.Handler, c.Isolation, c.Fits = handlers[i].Name, handlers[i].Isolation, v.Fits
		for _, text := range v.Reasons() {
			c.Reasons = append(c.Reasons, Reason{Text: text})
		}
	}
	return c
}

// requesting returns a pod with the requests that the API server derives from limits.
func requesting(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			list[i].Resources.Requests = withDefaults(list[i].Resources.Requests, list[i].Resources.Limits)
		}
	}
	if whole := pod.Spec.Resources; whole != nil {
		// Requests of containers take precedence over the limits of the pod.
		of := resource.AggregateContainerRequests(pod, resource.PodResourcesOptions{})
		maps.DeleteFunc(of, func(name corev1.ResourceName, _ quantity.Quantity) bool {
			return !resource.IsSupportedPodLevelResource(name)
		})
		whole.Requests = withDefaults(withDefaults(whole.Requests, of), whole.Limits)
	}
	return pod
}

func withDefaults(requests, from corev1.ResourceList) corev1.ResourceList {
	all := maps.Clone(from)
	if all == nil {
		return requests
	}
	maps.Copy(all, requests)
	return all
}

// obstacles returns why a node cannot run a pod (no), and why this is unknown (maybe).
func obstacles(n *corev1.Node, pod *corev1.Pod, known runtimeclass.Handler, affinity nodeaffinity.RequiredNodeAffinity, asks corev1.ResourceList) (no, maybe []string) {
	switch {
	case has(n, known.Name):
	case reports(n):
		return []string{"the node does not have the handler"}, nil
	case known.Name != "":
		maybe = append(maybe, "the node does not report its handlers")
	}
	full := closed(n, known.Name)
	if full {
		no = append(no, "the handler takes no pods there")
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != n.Name {
		no = append(no, "spec.nodeName of the pod is "+pod.Spec.NodeName)
	}
	if !ready(n) {
		no = append(no, "the node is not ready")
	}
	if n.Spec.Unschedulable {
		no = append(no, "the node is cordoned")
	}
	if match, err := affinity.Match(n); err != nil || !match {
		no = append(no, "the node's labels do not match"+missing(pod.Spec.NodeSelector, n))
	}
	if taint, kept := untolerated(n, pod.Spec.Tolerations); kept {
		no = append(no, fmt.Sprintf("the taint %s is not tolerated", taint.ToString()))
	}
	for _, name := range slices.Sorted(maps.Keys(asks)) {
		has, is := n.Status.Allocatable[name]
		if want := asks[name]; n.Status.Allocatable != nil && !want.IsZero() && want.Cmp(has) > 0 {
			switch counting := nodelabel.IsPods(string(name)); {
			case counting && full:
				continue
			case counting && !is:
				no = append(no, fmt.Sprintf("the node does not have %s: berth-controller sets it", name))
				continue
			case counting:
				no = append(no, fmt.Sprintf("the node has no room for pods of the handler: %s is %s", name, has.String()))
				continue
			}
			no = append(no, fmt.Sprintf("%s %s is requested, including overhead, but the node has %s", want.String(), name, has.String()))
		}
	}
	verdict := runtimeclass.Fit(pod, onNode(known, n))
	no = append(no, verdict.Places...)
	for _, l := range verdict.Missing {
		if l.Answer == capability.No {
			no = append(no, l.String())
		} else {
			maybe = append(maybe, l.String())
		}
	}
	return no, maybe
}

// missing returns the labels of a node selector that a node lacks.
func missing(wanted map[string]string, n *corev1.Node) string {
	lacks := map[string]string{}
	for key, value := range wanted {
		if has, there := n.Labels[key]; !there || has != value {
			lacks[key] = value
		}
	}
	if len(lacks) == 0 {
		return ""
	}
	return ": " + labels.Set(lacks).String()
}

// onNode returns a handler with the features that a node reports for it.
func onNode(known runtimeclass.Handler, n *corev1.Node) runtimeclass.Handler {
	h := runtimeclass.Handler{Name: known.Name}
	h.Isolation = known.Isolation
	for name, k := range known.Capabilities {
		h.Set(name, k.Answer, k.Source, k.Note)
	}
	for _, of := range n.Status.RuntimeHandlers {
		if of.Name != known.Name || of.Features == nil {
			continue
		}
		if yes := of.Features.UserNamespaces; yes != nil {
			// The kubelet's feature of this name includes ID-mapped mounts of volumes.
			h.Set(capability.UserNamespaces, answer(*yes), capability.Declared, "by the node")
			h.Set(capability.IDMappedMounts, answer(*yes), capability.Declared, "by the node")
		}
		if yes := of.Features.RecursiveReadOnlyMounts; yes != nil {
			h.Set(capability.RecursiveReadOnlyMounts, answer(*yes), capability.Declared, "by the node")
		}
	}
	return h
}

func answer(yes bool) capability.Answer {
	if yes {
		return capability.Yes
	}
	return capability.No
}
