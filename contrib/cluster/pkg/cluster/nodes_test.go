package cluster

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
)

// cordoned, tainted and so on change a node.
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

func TestNodes(t *testing.T) {
	s := &State{
		Nodes: []corev1.Node{
			aNode("a", label("kata"), "", "runc", "kata"),
			cordoned(aNode("b", label("kata"), "", "runc")),
			unready(aNode("c", nil, "", "runc"), "no\x1b\nnetwork"),
			aNode("old", nil),
			tainted(aNode("d", nil, "runc"), "infra"),
		},
		Classes: []nodev1.RuntimeClass{*aClass("sandboxed", "kata", selecting(label("kata"))), *aClass("plain", "crun"), *aClass("std", "runc")},
	}
	// Ready, cordoned, reports: handlers; gaps with classes and others that have it.
	want := []string{
		`a true false true: ""[] kata[sandboxed] runc[std]; crun[plain] 0`,
		`b true true true: ""[] runc[std]; crun[plain] 0 kata[sandboxed] 1 labelled`,
		`c false false true: ""[] runc[std]; crun[plain] 0 kata[] 1`,
		`old true false false: ; `,
		`d true false true: runc[std]; kata[] 1`,
	}
	for i, n := range Nodes(s) {
		var handlers, gaps []string
		for _, h := range n.Handlers {
			name := h.Name
			if name == "" {
				name = `""`
			}
			handlers = append(handlers, name+fmt.Sprint(h.Classes))
		}
		for _, g := range n.Gaps {
			text := fmt.Sprint(g.Handler, g.Classes, g.Nodes)
			if g.Labelled {
				text += " labelled"
			}
			gaps = append(gaps, text)
		}
		got := fmt.Sprintf("%s %v %v %v: %s; %s", n.Name, n.Ready, n.Cordoned, n.Reports, strings.Join(handlers, " "), strings.Join(gaps, " "))
		if got != want[i] {
			t.Errorf("got  %s\nwant %s", got, want[i])
		}
		if n.Ready != (n.Reason == "") || !n.Ready && n.Reason != "KubeletNotReady: no network" {
			t.Errorf("%s: %q", n.Name, n.Reason)
		}
	}
	// A handler that takes no pods is not reported, and no gap.
	closed := &State{
		Nodes:   []corev1.Node{aNode("a", map[string]string{"feature.node.kubernetes.io/handler.kata.present": "true"}, "", "runc")},
		Classes: []nodev1.RuntimeClass{*aClass("sandboxed", "kata", counted, selecting(map[string]string{"feature.node.kubernetes.io/handler.kata.present": "true"}))},
	}
	if gaps := Nodes(closed)[0].Gaps; len(gaps) > 0 {
		t.Errorf("a handler that takes no pods is a gap: %+v", gaps)
	}
	if got := Nodes(&State{}); got == nil || len(got) != 0 {
		t.Errorf("got %v of nothing", got)
	}
}
