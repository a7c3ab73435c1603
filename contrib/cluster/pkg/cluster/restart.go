package cluster

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// ruleRestartEndsPods is the rule of kubelets that must not be restarted now.
const ruleRestartEndsPods = "kubelet-restart-ends-pods"

// auditRestarts finds nodes where a restarted kubelet would end pods: such a kubelet checks all its
// pods against the node's labels and capacity as if they were new. The capacity is too low if pods
// were added while berth-controller did not run.
func (s *State) auditRestarts() []Finding {
	bound := map[string][]*corev1.Pod{}
	for i := range s.Pods {
		p := &s.Pods[i]
		bound[p.Spec.NodeName] = append(bound[p.Spec.NodeName], p)
	}
	var all []Finding
	for i := range s.Nodes {
		n := &s.Nodes[i]
		f := Finding{
			Severity: runtimeclass.Warning, Rule: ruleRestartEndsPods, Object: "node " + n.Name,
			Advice: "do not restart its kubelet before this is corrected, nor reboot the node without draining it",
		}
		if f.Concerned = unselected(n, bound[n.Name]); len(f.Concerned) > 0 {
			one := f
			one.Message = fmt.Sprintf("a restart of its kubelet would end %s: the node lacks labels that they select", amount(f.Concerned))
			all = append(all, one)
		}
		for _, name := range s.counted() {
			taken, pods := takenOf(name, bound[n.Name])
			if room := n.Status.Allocatable[name]; taken > room.Value() {
				one := f
				one.Concerned = pods
				one.Message = fmt.Sprintf("a restart of its kubelet would end some of %s: they take %d of %s, and the node has %d", amount(pods), taken, name, room.Value())
				one.Advice += "; does berth-controller run?"
				all = append(all, one)
			}
		}
	}
	return all
}

// counted returns, sorted, the extended resources by which the scheduler limits pods of a handler.
func (s *State) counted() []corev1.ResourceName {
	var names []corev1.ResourceName
	for i := range s.Classes {
		if c := &s.Classes[i]; runtimeclass.Counted(c) {
			names = append(names, corev1.ResourceName(nodelabel.Pods(c.Handler)))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unselected returns the pods with a node selector or affinity that does not match the node. An
// invalid selector matches nothing, as for the kubelet.
func unselected(n *corev1.Node, pods []*corev1.Pod) []string {
	var names []string
	for _, p := range pods {
		if match, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); err != nil || !match {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names
}

// takenOf returns the pods' use of a resource, counted as the kubelet does, and the pods that use
// it.
func takenOf(name corev1.ResourceName, pods []*corev1.Pod) (taken int64, names []string) {
	for _, p := range pods {
		of := resource.PodRequests(p, resource.PodResourcesOptions{UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true})
		if q := of[name]; q.Value() > 0 {
			taken, names = taken+q.Value(), append(names, p.Namespace+"/"+p.Name)
		}
	}
	return taken, names
}
