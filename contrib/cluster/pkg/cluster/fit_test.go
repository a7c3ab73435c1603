package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// able sets for all handlers of a node whether they support user namespaces.
func able(n corev1.Node, userns bool) corev1.Node {
	for i := range n.Status.RuntimeHandlers {
		n.Status.RuntimeHandlers[i].Features = &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: &userns}
	}
	return n
}

func sized(n corev1.Node, memory string) corev1.Node {
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	return n
}

func asking(memory string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}}}
	}
}

func limited(memory string, whole *corev1.ResourceRequirements) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers, p.Spec.Resources = []corev1.Container{{Name: "c"}}, whole
		if memory != "" {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		}
	}
}

// allocating sets the allocatable number of pods of kata on a node.
func allocating(n corev1.Node, pods string) corev1.Node {
	n.Status.Allocatable["feature.node.kubernetes.io/handler.kata.pods"] = resource.MustParse(pods)
	return n
}

// defaulting is a class of the default handler, with an annotation on host-pid.
func defaulting(hostPID string) nodev1.RuntimeClass {
	c := *aClass("std", "runc")
	c.Annotations = map[string]string{runtimeclass.DefaultAnnotation: "true", runtimeclass.CapabilitiesAnnotation: `{"host-pid": {"answer": "` + hostPID + `", "source": "declared"}}`}
	return c
}

func hostUsers(p *corev1.Pod) {
	no := false
	p.Spec.HostUsers = &no
}

func TestFit(t *testing.T) {
	kata, std := *aClass("kata", "kata", selecting(label("kata")), memory("100Mi")), *aClass("std", "runc")
	vm := runtimeclass.Handler{Name: "kata"}
	vm.Isolation = capability.VM
	vm.Set(capability.HostPID, capability.No, capability.Declared, "a kernel of its own")
	usual := runtimeclass.Handler{Name: "runc", Default: true}
	listed := FitOptions{Handlers: []runtimeclass.Handler{vm, usual, {Name: "wasm", State: "draining"}}}
	isolated := *aClass("kata", "kata", memory("100Mi"))
	isolated.Annotations = map[string]string{runtimeclass.IsolationAnnotation: "vm"}
	annotated := *aClass("vm", "kata")
	annotated.Annotations = map[string]string{runtimeclass.CapabilitiesAnnotation: `{"host-pid": {"answer": "no", "source": "declared", "note": "as annotated"}}`}
	probed := *aClass("selinux", "kata")
	probed.Annotations = map[string]string{runtimeclass.CapabilitiesAnnotation: `{"selinux": {"answer": "no", "source": "probed", "note": "this node does not have SELinux"}}`}
	two := []corev1.Node{aNode("a", label("kata"), "", "runc", "kata"), aNode("b", nil, "", "runc")}
	costs := func(amount string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(amount)}
		}
	}
	const noClass, otherClass = `pods "p" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead`, `pods "p" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead`
	for _, c := range []struct {
		what  string
		pod   corev1.Pod
		state State
		with  FitOptions
		// want are the beginnings of the results: class, handler, own, the answer, nodes, and why not.
		want []string
	}{
		{"a plain pod", aPod("p", "", ""), State{Nodes: two, Classes: []nodev1.RuntimeClass{kata, std}}, FitOptions{}, []string{
			"|| own yes [a b] []|",
			"std|runc| yes [a b] []|",
			"kata|kata| yes [a] []|the node does not have the handler (b)",
		}},
		{"sorted by isolation", aPod("p", "", ""), State{Nodes: two, Classes: []nodev1.RuntimeClass{isolated, std}}, FitOptions{}, []string{
			"kata|kata| yes [a] []|", "|| own yes [a b] []|", "std|runc| yes [a b] []|",
		}},
		{"handlers of a list", aPod("p", "kata", "", func(p *corev1.Pod) { p.Spec.HostPID = true }), State{Classes: []nodev1.RuntimeClass{kata, *aClass("lost", "nowhere")}}, listed, []string{
			"|runc| unknown [] []|spec.hostPID: true needs host-pid, but the handler may not support it",
			"kata|kata| own no [] []|spec.hostPID: true needs host-pid, but the handler does not support it: a kernel of its own",
			"|wasm| no [] []|the handler is draining",
			`lost|nowhere| no [] []|the handler "nowhere" is not in the list`,
		}},
		{"a list without a default", aPod("p", "", ""), State{}, FitOptions{Handlers: []runtimeclass.Handler{vm}}, []string{
			"|kata| yes [] []|", "|| own unknown [] []|the list does not name a default handler",
		}},
		{"annotations of a class", aPod("p", "", "", func(p *corev1.Pod) { p.Spec.HostPID = true }), State{Nodes: two, Classes: []nodev1.RuntimeClass{annotated}}, FitOptions{}, []string{
			"|| own unknown [] [a b]|spec.hostPID: true needs host-pid, but the handler may not support it (a, b)",
			"|runc| no [] []|no class uses it (a, b)",
			"vm|kata| no [] []|spec.hostPID: true needs host-pid, but the handler does not support it: as annotated (a); the node does not have the handler (b)",
		}},
		{"a capability that a probe found missing on one node", aPod("p", "", "", func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}}
		}), State{Nodes: two, Classes: []nodev1.RuntimeClass{probed}}, FitOptions{}, []string{
			"|| own unknown [] [a b]|",
			"selinux|kata| unknown [] [a]|spec.securityContext.seLinuxOptions: :::s0 needs selinux, but the handler may not support it: the node that was asked answers no: this node does not have SELinux (a)",
			"|runc| no [] []|no class uses it (a, b)",
		}},
		{"features that nodes report", aPod("p", "", "", hostUsers), State{Nodes: []corev1.Node{able(aNode("a", nil, "", "runc"), true), able(aNode("b", nil, "", "runc"), false), aNode("c", nil, "", "runc")}, Classes: []nodev1.RuntimeClass{std}}, FitOptions{}, []string{
			"|| own yes [a] [c]|",
			"std|runc| yes [a] [c]|spec.hostUsers: false needs id-mapped-mounts, but the handler does not support it: by the node (b); spec.hostUsers: false needs id-mapped-mounts, but the handler may not support it (c);",
		}},
		{"nodes that accept no pods", aPod("p", "std", ""), State{Nodes: []corev1.Node{
			unready(aNode("a", nil, "", "runc"), "x"), cordoned(aNode("b", nil, "", "runc")), tainted(aNode("c", nil, "", "runc"), "infra"), aNode("d", nil),
		}, Classes: []nodev1.RuntimeClass{std}}, FitOptions{}, []string{
			"|| yes [d] []|the node is cordoned (b); the node is not ready (a); the taint infra:NoSchedule is not tolerated (c)",
			"std|runc| own unknown [] [d]|the node does not report its handlers (d); the node is cordoned (b);",
		}},
		{"an admitted pod with the overhead of its class", aPod("p", "kata", "", on(label("kata")), costs("100Mi")), State{Nodes: two, Classes: []nodev1.RuntimeClass{kata, std}}, FitOptions{Admitted: true}, []string{
			"|| yes [a b] []|", "std|runc| yes [a b] []|", "kata|kata| own yes [a] []|",
		}},
		{"an admitted pod with an older overhead of its class", aPod("p", "kata", "", costs("1Mi")), State{Nodes: two, Classes: []nodev1.RuntimeClass{kata, std}}, FitOptions{Admitted: true}, []string{
			"|| yes [a b] []|", "std|runc| yes [a b] []|", "kata|kata| own yes [a] []|",
		}},
		{"an admitted pod with the overhead of a deleted class", aPod("p", "gone", "", costs("1Mi")), State{Nodes: two, Classes: []nodev1.RuntimeClass{std}}, FitOptions{Admitted: true}, []string{
			"|| yes [a b] []|", "std|runc| yes [a b] []|", "|kata| no [] []|no class uses it (a)", `gone|| own no [] []|pods "p" is forbidden: pod rejected: RuntimeClass "gone" not found`,
		}},
		{"overhead that its class has", aPod("p", "kata", "", costs("100Mi")), State{Nodes: two, Classes: []nodev1.RuntimeClass{kata, std}}, FitOptions{}, []string{
			"kata|kata| own yes [a] []|", "|| no [] []|" + noClass, "std|runc| no [] []|" + noClass,
		}},
		{"another overhead than that of its class", aPod("p", "kata", "", costs("1Mi")), State{Nodes: two, Classes: []nodev1.RuntimeClass{kata, std}}, FitOptions{}, []string{
			"|| no [] []|" + noClass, "std|runc| no [] []|" + noClass, "kata|kata| own no [] []|" + otherClass,
		}},
		{"overhead without a class", aPod("p", "", "", costs("1Mi")), State{Nodes: two, Classes: []nodev1.RuntimeClass{kata}}, FitOptions{}, []string{
			"|| own no [] []|" + noClass, "|runc| no [] []|no class uses it (a, b)", "kata|kata| no [] []|" + otherClass,
		}},
		{"a selector that its class has, too", aPod("p", "kata", "", on(label("kata"))), State{Nodes: two, Classes: []nodev1.RuntimeClass{kata, std}}, FitOptions{}, []string{
			"|| yes [a] []|the node's labels do not match", "std|runc| yes [a] []|the node's labels do not match", "kata|kata| own yes [a] []|",
		}},
		{"a pod of a deleted class", aPod("p", "gone", ""), State{Nodes: two, Classes: []nodev1.RuntimeClass{std}}, FitOptions{}, []string{
			"|| yes [a b] []|", "std|runc| yes [a b] []|", "|kata| no [] []|no class uses it (a)", `gone|| own no [] []|pods "p" is forbidden: pod rejected: RuntimeClass "gone" not found`,
		}},
		{"admission refuses it", aPod("p", "", "", on(map[string]string{"feature.node.kubernetes.io/handler.kata": "gone"})), State{Nodes: two, Classes: []nodev1.RuntimeClass{kata, std}}, FitOptions{}, []string{
			"|| own no [] []|the node's labels do not match: feature.node.kubernetes.io/handler.kata=gone (a, b)",
			"std|runc| no [] []|",
			`kata|kata| no [] []|pods "p" is forbidden: conflict: runtimeClass.scheduling.nodeSelector[`,
		}},
		{"too large with its overhead", aPod("p", "", "", asking("1Gi")), State{Nodes: []corev1.Node{sized(aNode("a", label("kata"), "", "kata"), "1050Mi")}, Classes: []nodev1.RuntimeClass{kata}}, FitOptions{}, []string{
			"|| own yes [a] []|",
			"kata|kata| no [] []|1124Mi memory is requested, including overhead, but the node has 1050Mi (a)",
		}},
		{"too large for a node that counts in Ki", aPod("p", "", "", asking("1Gi")), State{Nodes: []corev1.Node{sized(aNode("a", nil, ""), "1023999Ki")}}, FitOptions{}, []string{
			"|| own no [] []|1Gi memory is requested, including overhead, but the node has 1023999Ki (a)",
		}},
		{"no nodes", aPod("p", "", ""), State{Classes: []nodev1.RuntimeClass{std}}, FitOptions{}, []string{"|| own no [] []|the cluster has no nodes", "std|runc| no [] []|the cluster has no nodes"}},
		{"limits that are requests", aPod("p", "", "", limited("2Gi", nil)), State{Nodes: []corev1.Node{sized(aNode("a", nil, ""), "1Gi"), sized(aNode("b", nil, ""), "2Gi")}}, FitOptions{}, []string{
			"|| own yes [b] []|2Gi memory is requested, including overhead, but the node has 1Gi (a)",
		}},
		{"limits of the pod that are requests", aPod("p", "", "", limited("", &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}})), State{Nodes: []corev1.Node{sized(aNode("a", nil, ""), "1Gi")}}, FitOptions{}, []string{
			"|| own no [] []|2Gi memory is requested",
		}},
		{"requests of containers before limits of the pod", aPod("p", "", "", limited("1Gi", &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}})), State{Nodes: []corev1.Node{sized(aNode("a", nil, ""), "1Gi")}}, FitOptions{}, []string{
			"|| own yes [a] []|",
		}},
		{"a handler that accepts no pods, and one that is not counted", aPod("p", "", ""), State{Nodes: []corev1.Node{
			sized(aNode("a", map[string]string{"feature.node.kubernetes.io/handler.kata.present": "true"}, "", "kata"), "1Gi"), sized(aNode("b", nil, "", "kata"), "1Gi"), allocating(sized(aNode("c", nil, "", "kata"), "1Gi"), "0"),
		}, Classes: []nodev1.RuntimeClass{*aClass("kata", "kata", counted)}}, FitOptions{}, []string{
			"|| own yes [a b c] []|",
			"kata|kata| no [] []|the handler takes no pods there (a); the node does not have feature.node.kubernetes.io/handler.kata.pods: berth-controller sets it (b); the node has no room for pods of the handler: feature.node.kubernetes.io/handler.kata.pods is 0 (c)",
		}},
		{"a node in the spec", aPod("p", "", "b"), State{Nodes: []corev1.Node{aNode("a", nil, ""), aNode("b", nil, "")}}, FitOptions{}, []string{"|| own yes [b] []|spec.nodeName of the pod is b (a)"}},
		{"a node that the scheduler has set", aPod("p", "", "b"), State{Nodes: []corev1.Node{aNode("a", nil, ""), aNode("b", nil, "")}}, FitOptions{Admitted: true}, []string{"|| own yes [a b] []|"}},
		{"a default handler that supports it", aPod("p", "", "", func(p *corev1.Pod) { p.Spec.HostPID = true }), State{Nodes: two, Classes: []nodev1.RuntimeClass{defaulting("yes")}}, FitOptions{}, []string{
			"|| own yes [a b] []|", "std|runc| yes [a b] []|", "|kata| no",
		}},
		{"a default handler that does not support it", aPod("p", "", "", func(p *corev1.Pod) { p.Spec.HostPID = true }), State{Nodes: two, Classes: []nodev1.RuntimeClass{defaulting("no")}}, FitOptions{}, []string{
			"|| own unknown [] [a b]|spec.hostPID: true needs host-pid, but the handler may not support it: the default of the node that was asked does not (a, b)", "|kata| no", "std|runc| no",
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			before := c.pod.DeepCopy()
			got := Fit(&c.pod, &c.state, c.with)
			if len(got) != len(c.want) {
				t.Fatalf("got %d results, want %d: %+v", len(got), len(c.want), got)
			}
			for i, one := range got {
				own := " "
				if one.Own {
					own = " own "
				}
				text := fmt.Sprintf("%s|%s|%s%s %v %v|%s", one.Class, one.Handler, own, one.Fits, one.Nodes, one.MaybeNodes, one.Why())
				if !strings.HasPrefix(text, c.want[i]) {
					t.Errorf("got  %s\nwant %s", text, c.want[i])
				}
			}
			if before.String() != c.pod.String() {
				t.Error("Fit changed the pod")
			}
		})
	}
}
