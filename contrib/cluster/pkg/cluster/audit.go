package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// Rules of findings.
const (
	ruleClassWithoutNode    = "class-without-node"
	ruleNodesWithoutHandler = "nodes-without-handler"
	ruleHandlerWithoutClass = "handler-without-class"
	ruleNodeNotSelected     = "node-not-selected"
	RulePodWithoutHandler   = "pod-without-handler"
	RulePodWithoutClass     = "pod-without-class"
	ruleClassNotCounted     = "class-not-counted"
	ruleHandlerClosed       = "handler-takes-no-pods"
)

// Finding is a mismatch in a cluster.
type Finding struct {
	Severity runtimeclass.Severity `json:"severity"`
	Rule     string                `json:"rule"`
	// Object is the subject: "RuntimeClass kata", "handler kata".
	Object string `json:"object"`
	// Concerned are all affected nodes or pods.
	Concerned []string `json:"concerned,omitempty"`
	Message   string   `json:"message"`
	// Advice is the remedy.
	Advice string `json:"advice,omitempty"`
}

func (f Finding) String() string {
	text := fmt.Sprintf("%s: %s: %s", f.Object, f.Severity, f.Message)
	if f.Advice != "" {
		text += "; " + f.Advice
	}
	return fmt.Sprintf("%s (%s)", text, f.Rule)
}

// Audit returns mismatches between the nodes, classes and pods of a cluster. Pods with the same
// mismatch share one finding.
func Audit(s *State) []Finding {
	all := []Finding{}
	for i := range s.Classes {
		all = append(all, s.auditClass(&s.Classes[i])...)
	}
	for _, name := range s.handlerNames() {
		all = append(all, s.auditHandler(name)...)
	}
	all = append(all, s.auditPods()...)
	return append(all, s.auditRestarts()...)
}

// auditClass checks the nodes that pods of a class may be scheduled to.
func (s *State) auditClass(c *nodev1.RuntimeClass) []Finding {
	var selected, silent, having, lacking, elsewhere, closed []string
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if has(n, c.Handler) && !selects(c, n) {
			elsewhere = append(elsewhere, n.Name)
		}
		if !selects(c, n) {
			continue
		}
		selected = append(selected, n.Name)
		switch {
		case !reports(n):
			silent = append(silent, n.Name)
		case closedTo(n, c):
			closed = append(closed, n.Name)
		case !has(n, c.Handler):
			lacking = append(lacking, n.Name)
		default:
			having = append(having, n.Name)
		}
	}
	f := Finding{Severity: runtimeclass.Error, Rule: ruleClassWithoutNode, Object: "RuntimeClass " + c.Name}
	switch {
	case len(selected) == 0:
		f.Message = fmt.Sprintf("no node fits its %s: its pods stay pending", s.selection(c))
		f.Advice = s.whereInstead(c, elsewhere)
		return []Finding{f}
	case len(having)+len(silent) == 0 && len(closed) > 0:
		f.Rule, f.Concerned = ruleHandlerClosed, closed
		f.Message = fmt.Sprintf("no selected node with the handler %q takes its pods (%s): they stay %s", c.Handler, runtimeclass.Few(closed), whereTheyStay(c))
		f.Advice = fmt.Sprintf("see \"berth handler show %s\" there", c.Handler)
		return []Finding{f}
	case len(having)+len(silent) == 0:
		f.Concerned = lacking
		f.Message = fmt.Sprintf("none of the nodes that it selects has the handler %q%s: its pods stay in ContainerCreating", c.Handler, runtimeclass.DidYouMean(c.Handler, s.handlerNames()))
		f.Advice = s.whereInstead(c, elsewhere)
		return []Finding{f}
	case len(having) == 0:
		f.Severity, f.Concerned = runtimeclass.Warning, silent
		f.Message = fmt.Sprintf("none of the nodes that it selects reports the handler %q; some report no handlers at all: %s", c.Handler, runtimeclass.Few(silent))
		f.Advice = "nodes report handlers since Kubernetes 1.31, if their CRI daemon supports it"
		return []Finding{f}
	}
	return s.auditServed(c, f, closed, lacking)
}

// auditServed returns findings about a class with nodes that can run its pods.
func (s *State) auditServed(c *nodev1.RuntimeClass, f Finding, closed, lacking []string) []Finding {
	var all []Finding
	if Uncounted(c, s.Nodes) {
		f.Rule = ruleClassNotCounted
		f.Message = fmt.Sprintf("no node has the resource %s, which its pods request: they stay pending", nodelabel.Pods(c.Handler))
		f.Advice = "run berth-controller (contrib/kubernetes/capacity.yaml), or generate the class with --no-capacity"
		all = append(all, f)
	}
	f.Severity = runtimeclass.Warning
	if len(closed) > 0 {
		f.Rule, f.Concerned = ruleHandlerClosed, closed
		f.Message = fmt.Sprintf("the handler %q takes no pods on %s", c.Handler, runtimeclass.Few(closed))
		f.Advice = fmt.Sprintf("see \"berth handler show %s\" there", c.Handler)
		all = append(all, f)
	}
	if len(lacking) > 0 {
		f.Rule, f.Concerned = ruleNodesWithoutHandler, lacking
		f.Message = fmt.Sprintf("it selects nodes without the handler %q, where its pods never start: %s", c.Handler, runtimeclass.Few(lacking))
		f.Advice = fmt.Sprintf("select nodes by %s=%s, or give these the handler", nodelabel.Present(c.Handler), nodelabel.True)
		all = append(all, f)
	}
	return all
}

// closedTo reports whether the labels of a node show that it takes no pods of a class's handler. A
// node without the handler in its status is closed only to Counted classes: the scheduler keeps
// their pods away. Pods of other classes are scheduled to that node and never start.
func closedTo(n *corev1.Node, c *nodev1.RuntimeClass) bool {
	return closed(n, c.Handler) && (runtimeclass.Counted(c) || has(n, c.Handler))
}

// closed reports whether the labels of a node show that a handler exists and takes no pods. The
// status of the node may still have the handler, for example if the handler is cordoned.
func closed(n *corev1.Node, handler string) bool {
	return handler != "" && n.Labels[nodelabel.Present(handler)] == nodelabel.True && n.Labels[nodelabel.Handler(handler)] != nodelabel.Ready
}

// whereTheyStay returns the state in which pods of a class wait if the class's handler takes no
// pods.
func whereTheyStay(c *nodev1.RuntimeClass) string {
	if runtimeclass.Counted(c) {
		return "pending"
	}
	return "in ContainerCreating"
}

// selection names the fields of a class by which the scheduler chooses nodes.
func (s *State) selection(c *nodev1.RuntimeClass) string {
	if c.Scheduling == nil || len(c.Scheduling.NodeSelector) == 0 {
		return "tolerations"
	}
	return fmt.Sprintf("nodeSelector (%s) and tolerations", labels.Set(c.Scheduling.NodeSelector))
}

func (s *State) whereInstead(c *nodev1.RuntimeClass, elsewhere []string) string {
	if len(elsewhere) > 0 {
		return fmt.Sprintf("nodes that have the handler are not selected (%s): %s", runtimeclass.Few(elsewhere), s.remedy([]string{c.Name}, elsewhere))
	}
	if len(s.Nodes) == 0 {
		return "the cluster has no nodes"
	}
	return fmt.Sprintf("give nodes the handler %q, or delete the class", c.Handler)
}

// remedy returns advice on how the classes can select the nodes.
func (s *State) remedy(classes, nodes []string) string {
	labelled, taints := true, map[string]string{}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if !slices.Contains(nodes, n.Name) {
			continue
		}
		for _, name := range classes {
			scheduling := cmp.Or(s.class(name).Scheduling, &nodev1.Scheduling{})
			labelled = labelled && missing(scheduling.NodeSelector, n) == ""
			if taint, kept := untolerated(n, scheduling.Tolerations); kept {
				taints[taint.ToString()] = ""
			}
		}
	}
	var all []string
	if !labelled {
		all = append(all, "label them as the nodeSelector requires, or change the nodeSelector")
	}
	if len(taints) > 0 {
		all = append(all, "let the class tolerate "+runtimeclass.Few(slices.Sorted(maps.Keys(taints))))
	}
	return strings.Join(all, "; ")
}

// auditHandler checks whether pods can reach a handler.
func (s *State) auditHandler(name string) []Finding {
	var missed []string
	having, classes := s.having(name), s.classesOf(name)
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if has(n, name) && !slices.ContainsFunc(s.Classes, func(c nodev1.RuntimeClass) bool { return c.Handler == name && selects(&c, n) }) {
			missed = append(missed, n.Name)
		}
	}
	f := Finding{Severity: runtimeclass.Warning, Object: "handler " + name}
	switch {
	case len(classes) == 0:
		f.Rule, f.Concerned = ruleHandlerWithoutClass, having
		f.Message = fmt.Sprintf("no class uses it; it is on %s", runtimeclass.Few(having))
		f.Advice = fmt.Sprintf("\"kubectl berth generate %s | kubectl apply --server-side -f -\" creates one; not needed for the default handler, which pods without a class get", name)
		if !nameable(name) {
			f.Advice = "a class cannot use this name: rename it to lower case letters, digits and \"-\" in the runtime's configuration"
		}
	case len(missed) == len(having):
		return nil // auditClass reports it
	case len(missed) > 0:
		f.Rule, f.Concerned = ruleNodeNotSelected, missed
		f.Message = fmt.Sprintf("its classes (%s) do not select these nodes that have it: %s", runtimeclass.Few(classes), runtimeclass.Few(missed))
		f.Advice = s.remedy(classes, missed)
	default:
		return nil
	}
	return []Finding{f}
}
