package cluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// The audit finds nodes on which a restart of the kubelet would end pods.
func TestRestartsThatEndPods(t *testing.T) {
	places := corev1.ResourceName(nodelabel.Pods("kata"))
	one := corev1.ResourceList{places: resource.MustParse("1")}
	class := aClass("kata", "kata", selecting(map[string]string{nodelabel.Present("kata"): nodelabel.True}))
	class.Overhead = &nodev1.Overhead{PodFixed: one}
	node := aNode("a", map[string]string{nodelabel.Present("kata"): nodelabel.True}, "", "kata")
	node.Status.Allocatable = corev1.ResourceList{places: resource.MustParse("2")}
	counted := func(p *corev1.Pod) { p.Spec.Overhead = one }
	ready := on(map[string]string{nodelabel.Handler("kata"): nodelabel.Ready})
	for _, c := range []struct {
		what string
		pods []corev1.Pod
		want string
	}{
		{"no pods", nil, ""},
		{"all pods fit", []corev1.Pod{aPod("p", "kata", "a", counted), aPod("q", "kata", "a", counted), aPod("r", "", "a")}, ""},
		{"more pods than the capacity", []corev1.Pod{aPod("p", "kata", "a", counted), aPod("q", "kata", "a", counted), aPod("r", "kata", "a", counted)},
			"end some of 3 pods (web/p, web/q, web/r): they take 3 of " + string(places) + ", and the node has 2"},
		{"pods of other nodes", []corev1.Pod{aPod("p", "kata", "a", counted), aPod("q", "kata", "b", counted), aPod("r", "kata", "b", counted)}, ""},
		{"a missing label", []corev1.Pod{aPod("p", "kata", "a", ready), aPod("q", "", "a")}, "would end pod web/p: the node lacks labels"},
	} {
		t.Run(c.what, func(t *testing.T) {
			s := &State{Nodes: []corev1.Node{node}, Classes: []nodev1.RuntimeClass{*class}, Pods: c.pods}
			var lines []string
			for _, f := range Audit(s) {
				if f.Rule == ruleRestartEndsPods {
					lines = append(lines, f.String())
				}
			}
			if got := strings.Join(lines, "\n"); c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
