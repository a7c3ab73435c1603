package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

// aPod is a pending pod of a class, on a node or, if node is empty, unschedulable.
func aPod(name, class, node string, change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: name, UID: types.UID(name)}}
	p.Spec.NodeName = node
	if class != "" {
		p.Spec.RuntimeClassName = &class
	}
	p.Status.Phase = corev1.PodPending
	if node == "" {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

func on(labels map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = labels }
}

func anEvent(pod, message string) corev1.Event {
	return corev1.Event{Reason: SandboxFailed, Message: message, InvolvedObject: corev1.ObjectReference{UID: types.UID(pod)}}
}

// cordoned and tainted return a changed node.
func cordoned(n corev1.Node) corev1.Node {
	n.Spec.Unschedulable = true
	return n
}

func tainted(n corev1.Node, key string) corev1.Node {
	n.Spec.Taints = []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}
	return n
}

func tolerating(key string) func(*nodev1.RuntimeClass) {
	return func(c *nodev1.RuntimeClass) {
		if c.Scheduling == nil {
			c.Scheduling = &nodev1.Scheduling{}
		}
		c.Scheduling.Tolerations = append(c.Scheduling.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
}

func label(handler string) map[string]string {
	return map[string]string{"feature.node.kubernetes.io/handler." + handler: "ready"}
}

func TestAudit(t *testing.T) {
	labelled := func(name, handler string) corev1.Node { return aNode(name, label(handler), "", handler) }
	kata := *aClass("kata", "kata", selecting(label("kata")))
	present := func(name, handler string) corev1.Node {
		labels := map[string]string{"feature.node.kubernetes.io/handler.kata.present": "true"}
		if handler == "kata" {
			labels["feature.node.kubernetes.io/handler.kata"] = "ready"
		}
		return aNode(name, labels, "", handler)
	}
	// A cordoned handler is still listed by the node, whose capacity is that of the running pods.
	cordonedHandler := func(name string) corev1.Node {
		return roomy(aNode(name, map[string]string{"feature.node.kubernetes.io/handler.kata.present": "true"}, "", "kata"), "kata", "3")
	}
	counting := *aClass("kata", "kata", counted, selecting(map[string]string{"feature.node.kubernetes.io/handler.kata.present": "true"}))
	runc := *aClass("std", "runc")
	refused := `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "kata" is configured`
	for _, c := range []struct {
		what  string
		state State
		// want are the beginnings of the findings: severity, rule, object, concerned and text.
		want []string
	}{
		{"nothing", State{}, nil},
		{"no findings", State{Nodes: []corev1.Node{labelled("a", "kata")}, Classes: []nodev1.RuntimeClass{kata}}, nil},
		{"no node is selected", State{Nodes: []corev1.Node{aNode("a", nil, "", "kata"), aNode("b", nil, "")}, Classes: []nodev1.RuntimeClass{kata}}, []string{
			"error class-without-node RuntimeClass kata []: no node fits its nodeSelector (feature.node.kubernetes.io/handler.kata=ready) and tolerations: its pods stay pending; nodes that have the handler are not selected (a)",
		}},
		{"a cluster without nodes", State{Classes: []nodev1.RuntimeClass{kata}}, []string{"error class-without-node RuntimeClass kata []: no node fits its "}},
		{"no selected node has the handler", State{Nodes: []corev1.Node{aNode("a", nil, "kta"), aNode("b", nil, "")}, Classes: []nodev1.RuntimeClass{*aClass("x", "kata"), *aClass("y", "kta", selecting(map[string]string{"no": "where"}))}}, []string{
			`error class-without-node RuntimeClass x [a b]: none of the nodes that it selects has the handler "kata" (did you mean "kta"?): its pods stay in ContainerCreating; give nodes the handler "kata", or delete the class`,
			"error class-without-node RuntimeClass y []: no node fits its nodeSelector (no=where)",
		}},
		{"no node reports handlers", State{Nodes: []corev1.Node{aNode("a", nil), aNode("b", nil)}, Classes: []nodev1.RuntimeClass{runc}}, []string{
			`warning class-without-node RuntimeClass std [a b]: none of the nodes that it selects reports the handler "runc"; some report no handlers at all: a, b`,
		}},
		{"some nodes report handlers", State{Nodes: []corev1.Node{aNode("a", nil), aNode("b", nil, "runc")}, Classes: []nodev1.RuntimeClass{runc}}, nil},
		{"only some nodes have the handler", State{Nodes: []corev1.Node{aNode("a", nil, "runc"), aNode("b", nil, "crun"), tainted(aNode("c", nil, "crun"), "infra")}, Classes: []nodev1.RuntimeClass{runc, *aClass("c", "crun", tolerating("infra"))}}, []string{
			`warning nodes-without-handler RuntimeClass std [b]: it selects nodes without the handler "runc", where its pods never start: b`,
			`warning nodes-without-handler RuntimeClass c [a]:`,
		}},
		{"taints keep pods away", State{Nodes: []corev1.Node{tainted(aNode("a", nil, "runc"), "infra")}, Classes: []nodev1.RuntimeClass{runc}}, []string{
			"error class-without-node RuntimeClass std []: no node fits its tolerations",
		}},
		{"the taint of a node that is not ready is ignored", State{Nodes: []corev1.Node{unready(tainted(aNode("a", nil, "runc"), "node.kubernetes.io/not-ready"), "")}, Classes: []nodev1.RuntimeClass{runc}}, nil},
		{"no class", State{Nodes: []corev1.Node{aNode("a", nil, "", "runc"), aNode("b", nil, "runc")}}, []string{
			"warning handler-without-class handler runc [a b]: no class uses it; it is on a, b; \"kubectl berth generate runc | kubectl apply --server-side -f -\" creates one",
		}},
		{"a handler name that no class can have", State{Nodes: []corev1.Node{aNode("a", nil, "kata_qemu")}}, []string{
			"warning handler-without-class handler kata_qemu [a]: no class uses it; it is on a; a class cannot use this name: ",
		}},
		{"no class selects a node with the handler", State{Nodes: []corev1.Node{labelled("a", "kata"), aNode("b", nil, "kata")}, Classes: []nodev1.RuntimeClass{kata}}, []string{
			"warning node-not-selected handler kata [b]: its classes (kata) do not select these nodes that have it: b",
		}},
		{"an outdated label", State{Nodes: []corev1.Node{labelled("a", "kata"), aNode("b", label("kata"), "")}, Classes: []nodev1.RuntimeClass{kata}}, []string{
			"warning nodes-without-handler RuntimeClass kata [b]:",
		}},
		{"pods of a deleted class", State{Pods: []corev1.Pod{aPod("p", "gone", "a"), aPod("q", "gone", "")}}, []string{
			"error pod-without-class RuntimeClass gone [web/p web/q]: 2 pods (web/p, web/q) cannot start: the class was deleted",
		}},
		{"pods without findings", State{Nodes: []corev1.Node{labelled("a", "kata")}, Classes: []nodev1.RuntimeClass{kata}, Pods: []corev1.Pod{
			aPod("no class", "", "a"), aPod("starting", "kata", "a"), aPod("full", "kata", "", on(label("kata"))),
			aPod("its own fault", "kata", "", on(map[string]string{"no": "where"})),
			aPod("scheduled soon", "kata", "", func(p *corev1.Pod) { p.Status.Conditions = nil }),
			aPod("running", "gone", "a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }),
			aPod("going", "gone", "a", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }),
		}, Events: []corev1.Event{anEvent("starting", `Failed to create pod sandbox: handler "kata": pull image`)}}, nil},
		{"pods on nodes without the handler", State{Nodes: []corev1.Node{labelled("a", "kata"), aNode("b", nil, "runc")}, Classes: []nodev1.RuntimeClass{kata, *aClass("std", "runc", selecting(map[string]string{"no": "where"}))}, Pods: []corev1.Pod{
			aPod("p", "kata", "b"), aPod("q", "kata", "b"),
		}}, []string{
			"error class-without-node RuntimeClass std",
			`error pod-without-handler RuntimeClass kata [web/p web/q]: 2 pods (web/p, web/q) cannot start: node b does not have the handler "kata"`,
		}},
		{"pods that a node refuses", State{Nodes: []corev1.Node{labelled("a", "kata")}, Classes: []nodev1.RuntimeClass{kata}, Pods: []corev1.Pod{aPod("p", "kata", "a")}, Events: []corev1.Event{anEvent("p", refused)}}, []string{
			"error pod-without-handler RuntimeClass kata [web/p]: pod web/p cannot start on node a: " + refused,
		}},
		{"control characters in an event", State{Nodes: []corev1.Node{labelled("a", "kata")}, Classes: []nodev1.RuntimeClass{kata}, Pods: []corev1.Pod{aPod("p", "kata", "a")}, Events: []corev1.Event{anEvent("p", refused+"\x1b[2J\u202e\r\nall well")}}, []string{
			"error pod-without-handler RuntimeClass kata [web/p]: pod web/p cannot start on node a: " + refused + `\u001b[2J\u202e all well`,
		}},
		{"pods are counted", State{Nodes: []corev1.Node{roomy(present("a", "kata"), "kata", "3")}, Classes: []nodev1.RuntimeClass{counting}}, nil},
		{"pods are not counted", State{Nodes: []corev1.Node{present("a", "kata")}, Classes: []nodev1.RuntimeClass{counting}}, []string{
			"error class-not-counted RuntimeClass kata []: no node has the resource feature.node.kubernetes.io/handler.kata.pods, which its pods request: they stay pending; run berth-controller",
		}},
		{"a handler accepts no pods on some nodes", State{Nodes: []corev1.Node{roomy(present("a", "kata"), "kata", "3"), roomy(present("b", "runc"), "kata", "0")}, Classes: []nodev1.RuntimeClass{counting, runc}}, []string{
			`warning handler-takes-no-pods RuntimeClass kata [b]: the handler "kata" takes no pods on b; see "berth handler show kata" there`,
			"warning nodes-without-handler RuntimeClass std [a]:",
		}},
		{"a handler accepts no pods on any node", State{Nodes: []corev1.Node{roomy(present("b", "runc"), "kata", "0")}, Classes: []nodev1.RuntimeClass{counting, runc}, Pods: []corev1.Pod{aPod("p", "kata", "")}}, []string{
			`error handler-takes-no-pods RuntimeClass kata [b]: no selected node with the handler "kata" takes its pods (b): they stay pending`,
		}},
		{"a handler is cordoned on some nodes", State{Nodes: []corev1.Node{roomy(present("a", "kata"), "kata", "3"), cordonedHandler("b")}, Classes: []nodev1.RuntimeClass{counting}}, []string{
			`warning handler-takes-no-pods RuntimeClass kata [b]: the handler "kata" takes no pods on b; see "berth handler show kata" there`,
		}},
		{"a handler is cordoned", State{Nodes: []corev1.Node{cordonedHandler("b")}, Classes: []nodev1.RuntimeClass{counting, *aClass("uncounted", "kata")}}, []string{
			`error handler-takes-no-pods RuntimeClass kata [b]: no selected node with the handler "kata" takes its pods (b): they stay pending`,
			`error handler-takes-no-pods RuntimeClass uncounted [b]: no selected node with the handler "kata" takes its pods (b): they stay in ContainerCreating`,
		}},
		{"a taint keeps pods from a node", State{Nodes: []corev1.Node{labelled("a", "kata"), tainted(labelled("b", "kata"), "infra")}, Classes: []nodev1.RuntimeClass{kata}}, []string{
			"warning node-not-selected handler kata [b]: its classes (kata) do not select these nodes that have it: b; let the class tolerate infra:NoSchedule",
		}},
		{"a taint and labels keep pods from a node", State{Nodes: []corev1.Node{tainted(aNode("b", nil, "kata"), "infra")}, Classes: []nodev1.RuntimeClass{kata}}, []string{
			"error class-without-node RuntimeClass kata []: no node fits its nodeSelector (feature.node.kubernetes.io/handler.kata=ready) and tolerations: its pods stay pending; nodes that have the handler are not selected (b): label them as the nodeSelector requires, or change the nodeSelector; let the class tolerate infra:NoSchedule",
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			var got []string
			for _, f := range Audit(&c.state) {
				got = append(got, fmt.Sprintf("%s %s %s %v: %s; %s", f.Severity, f.Rule, f.Object, f.Concerned, f.Message, f.Advice))
			}
			for i := range max(len(got), len(c.want)) {
				switch {
				case i >= len(c.want):
					t.Errorf("unwanted finding: %s", got[i])
				case i >= len(got):
					t.Errorf("missing finding: %s", c.want[i])
				case !strings.HasPrefix(got[i], c.want[i]):
					t.Errorf("got  %s\nwant %s", got[i], c.want[i])
				}
			}
		})
	}
}

// Many pods that wait for the same reason are one finding.
func TestManyPods(t *testing.T) {
	s := &State{}
	for i := range 5000 {
		s.Pods = append(s.Pods, aPod(fmt.Sprintf("p-%d", i), "gone", ""))
	}
	got := Audit(s)
	if len(got) != 1 || len(got[0].Concerned) != 5000 || !strings.Contains(got[0].Message, "web/p-4 and 4995 more") {
		t.Errorf("got %d findings: %.300v", len(got), got)
	}
}

func TestMissesHandler(t *testing.T) {
	for message, want := range map[string]bool{
		`rpc error: code = InvalidArgument desc = unknown runtime handler "kata"; this node has runc (default)`: true,
		`handler "kata": accepts no pods while it is not-ready: gone`:                                           true,
		`failed to get sandbox runtime: no runtime for "kata" is configured`:                                    true,
		`failed to find runtime handler kata from runtime list map[runc:0xc0]`:                                  true,
		`RuntimeHandler "kata" not supported`:                                                                   true,
		`handler "kata": start the shim: exit status 1`:                                                         false,
		`no runtime for "kata-qemu" is configured`:                                                              false,
		`failed to find runtime handler kata-qemu from runtime list`:                                            false,
		"": false,
	} {
		test.Equal(t, fmt.Sprintf("%q", message), missesHandler(message, "kata"), want)
	}
}

// missesHandler recognizes berth's own error for an unknown handler.
func TestMissesHandlerOfBerth(t *testing.T) {
	table := test.Value(handler.NewTable(1, "runc", []handler.Route[struct{}]{{Definition: &handler.Definition{Name: "runc"}}}))(t)
	for _, name := range []string{"kata", "rucn"} {
		if said := table.UnknownError(name).Error(); !missesHandler(said, name) {
			t.Errorf("%q is not recognized as a missing handler", said)
		}
	}
}
