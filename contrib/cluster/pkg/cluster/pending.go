package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/printable"
)

// SandboxFailed is the reason of events about failed sandboxes.
const SandboxFailed = "FailedCreatePodSandBox"

// auditPods finds pods that wait for a handler or a deleted class, and groups them by the reason.
func (s *State) auditPods() []Finding {
	said := map[types.UID]string{}
	for i := range s.Events {
		if e := &s.Events[i]; e.Reason == SandboxFailed {
			said[e.InvolvedObject.UID] = printable.Line(strings.Join(strings.Fields(e.Message), " "))
		}
	}
	found := map[string]*Finding{}
	for i := range s.Pods {
		p := &s.Pods[i]
		f := s.auditPod(p, said[p.UID])
		if f == nil {
			continue
		}
		key := f.Rule + "\x00" + f.Message
		if found[key] == nil {
			found[key] = f
		}
		found[key].Concerned = append(found[key].Concerned, p.Namespace+"/"+p.Name)
	}
	var all []Finding
	for _, key := range slices.Sorted(maps.Keys(found)) {
		f := found[key]
		f.Message = fmt.Sprintf("%s %s", amount(f.Concerned), f.Message)
		all = append(all, *f)
	}
	return all
}

// amount formats pods: "pod web/front" or "3 pods (a/b, a/c, a/d)".
func amount(pods []string) string {
	if len(pods) == 1 {
		return "pod " + pods[0]
	}
	return fmt.Sprintf("%d pods (%s)", len(pods), runtimeclass.Few(pods))
}

// auditPod returns a finding if a pod waits for a handler or a deleted class, else nil.
func (s *State) auditPod(p *corev1.Pod, said string) *Finding {
	if p.Status.Phase != corev1.PodPending || p.Spec.RuntimeClassName == nil || p.DeletionTimestamp != nil {
		return nil
	}
	f := &Finding{Severity: runtimeclass.Error, Object: "RuntimeClass " + *p.Spec.RuntimeClassName}
	c := s.class(*p.Spec.RuntimeClassName)
	if c == nil {
		f.Rule, f.Message, f.Advice = RulePodWithoutClass, "cannot start: the class was deleted", "recreate the class, or recreate the pods without it"
		return f
	}
	if p.Spec.NodeName == "" {
		return nil // the pod's events contain the scheduler's reason
	}
	f.Rule = RulePodWithoutHandler
	f.Advice = "add the handler to the node, or delete the pods after the class selects nodes with it"
	if i := slices.IndexFunc(s.Nodes, func(n corev1.Node) bool { return n.Name == p.Spec.NodeName }); i >= 0 {
		if n := &s.Nodes[i]; reports(n) && !has(n, c.Handler) {
			f.Message = fmt.Sprintf("cannot start: node %s does not have the handler %q", n.Name, c.Handler)
			return f
		}
	}
	if missesHandler(said, c.Handler) {
		f.Message = fmt.Sprintf("cannot start on node %s: %s", p.Spec.NodeName, said)
		return f
	}
	return nil
}

func (s *State) having(name string) []string {
	var all []string
	for i := range s.Nodes {
		if has(&s.Nodes[i], name) {
			all = append(all, s.Nodes[i].Name)
		}
	}
	return all
}

// withoutClass returns a pod without the fields that its class added. Its overhead is always from
// the class, even if the class was replaced or deleted since.
func withoutClass(p *corev1.Pod, c *nodev1.RuntimeClass) *corev1.Pod {
	plain := p.DeepCopy()
	plain.Spec.RuntimeClassName, plain.Spec.Overhead = nil, nil
	if c != nil && c.Scheduling != nil {
		for key, value := range c.Scheduling.NodeSelector {
			if plain.Spec.NodeSelector[key] == value {
				delete(plain.Spec.NodeSelector, key)
			}
		}
		plain.Spec.Tolerations = slices.DeleteFunc(plain.Spec.Tolerations, func(t corev1.Toleration) bool {
			return slices.ContainsFunc(c.Scheduling.Tolerations, func(o corev1.Toleration) bool { return t.MatchToleration(&o) })
		})
	}
	return plain
}

// missingMessages are messages of CRI daemons about a handler that is missing or takes no pods.
var missingMessages = []string{
	`unknown runtime handler %q`,       // berth
	`handler %q: accepts no pods`,      // berth
	`handler %q is not known any more`, // berth
	`no runtime for %q is configured`,  // containerd
	`find runtime handler %s from`,     // CRI-O
	`RuntimeHandler %q not supported`,  // cri-dockerd
}

// missesHandler reports whether a message means that a handler is missing or takes no pods.
func missesHandler(message, handler string) bool {
	return slices.ContainsFunc(missingMessages, func(w string) bool { return strings.Contains(message, fmt.Sprintf(w, handler)) })
}
