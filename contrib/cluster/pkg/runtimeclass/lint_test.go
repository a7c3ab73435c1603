package runtimeclass

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-cri/berth/internal/test"
)

func measured(pods int, memory, cpu string) *Measurement {
	of := func(s string) Distribution {
		q := resource.MustParse(s)
		return Distribution{P50: q, P95: q, Max: q}
	}
	return &Measurement{Pods: pods, Memory: of(memory), CPU: of(cpu)}
}

func class(t *testing.T, name, rest string) []Class {
	t.Helper()
	objects := test.Value(Parse("f", []byte("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: "+name+"}\nscheduling: {nodeSelector: {a: b}}\n"+rest)))(t)
	return Classes(objects)
}

func TestHandlersAndMeasurements(t *testing.T) {
	mixed := measured(10, "7.5Mi", "3m")
	mixed.CPU.Pods = 2
	handlers := []Handler{
		{Name: "runc", Overhead: measured(10, "7.5Mi", "3m")}, {Name: "kata", State: "not-ready", Reason: "there is no /dev/kvm"},
		{Name: "crun", Overhead: measured(0, "1Gi", "1")}, {Name: "gvisor", State: "cordoned"},
		{Name: "idle", Overhead: measured(3, "7.5Mi", "36932n")}, {Name: "small", Overhead: measured(3, "900Ki", "36932n")}, {Name: "mixed", Overhead: mixed},
	}
	for _, c := range []struct{ what, rest, want string }{
		{"unknown", "handler: rnuc\n", `f:5: error: unknown-handler: handler "rnuc" does not exist / the handlers are crun, gvisor, idle, kata, mixed and 2 more; pods of the class stay in ContainerCreating`},
		{"unknown, without a similar name", "handler: firecracker\n", `f:5: error: unknown-handler: handler "firecracker" does not exist / the handlers are crun, gvisor, idle, kata, mixed and 2 more; pods of the class stay in ContainerCreating`},
		{"not ready", "handler: kata\n", `f:5: warning: handler-takes-no-pods: the handler is not-ready: there is no /dev/kvm / see "berth handler show kata"`},
		{"cordoned", "handler: gvisor\n", `f:5: warning: handler-takes-no-pods: the handler is cordoned / see "berth handler show gvisor"`},
		{"without overhead", "handler: runc\n", `f:1: warning: overhead-missing: no overhead is declared, so the scheduler does not count cpu: 3m, memory: 8Mi of each pod / p95 of 10 pods; declare overhead.podFixed: cpu: 3m, memory: 8Mi`},
		{"too little memory", "handler: runc\noverhead:\n  podFixed:\n    cpu: 3m\n    memory: 6Mi\n", `f:9: error: overhead-too-small: 6Mi is less than 7680Ki, the p95 of 10 pods / declare 8Mi`},
		{"just enough", "handler: runc\noverhead: {podFixed: {cpu: 3m, memory: 7864320}}\n", ""},
		{"less than measured, within the tolerance", "handler: runc\noverhead: {podFixed: {cpu: 2500u, memory: 7Mi}}\n", ""},
		{"more than any node has", "handler: runc\noverhead: {podFixed: {cpu: 1E, memory: 100E}}\n", ""},
		{"idle, CPU not declared", "handler: idle\noverhead: {podFixed: {memory: 8Mi}}\n", ""},
		{"idle, without overhead", "handler: small\n", ""},
		{"CPU use of fewer pods", "handler: mixed\noverhead: {podFixed: {cpu: 1m, memory: 1Mi}}\n",
			"f:6: error: overhead-too-small: 1m is less than 3m, the p95 of 2 pods / declare 3m\n" +
				"f:6: error: overhead-too-small: 1Mi is less than 7680Ki, the p95 of 10 pods / declare 8Mi"},
		{"mixed without overhead", "handler: mixed\n", `f:1: warning: overhead-missing: no overhead is declared, so the scheduler does not count cpu: 3m, memory: 8Mi of each pod / p95 of 10 pods, and of 2 pods for CPU use; declare overhead.podFixed: cpu: 3m, memory: 8Mi`},
		{"CPU not declared", "handler: runc\noverhead: {podFixed: {memory: 1Gi}}\n", `f:6: error: overhead-too-small: 0 is less than 3m, the p95 of 10 pods / declare 3m`},
		{"no pods were measured", "handler: crun\noverhead: {podFixed: {memory: 1}}\n", ""},
		{"only counted", "handler: runc\noverhead: {podFixed: {feature.node.kubernetes.io/handler.runc.pods: 1}}\n", `f:6: warning: overhead-missing: `},
		{"counted for another handler", "handler: crun\noverhead:\n  podFixed:\n    feature.node.kubernetes.io/handler.runc.pods: 1\n",
			`f:8: error: pods-of-another-handler: it counts pods of a handler other than "crun" / declare feature.node.kubernetes.io/handler.crun.pods in its place`},
		{"an invalid handler name", "handler: no.dots\n", "f:5: error: invalid: "},
	} {
		t.Run(c.what, func(t *testing.T) {
			var all []string
			for _, f := range Lint(class(t, "x", c.rest), LintOptions{Handlers: handlers}) {
				where, _, _ := strings.Cut(f.Where, ": document")
				all = append(all, fmt.Sprintf("%s: %s: %s: %s / %s", where, f.Severity, f.Rule, f.Message, f.Advice))
			}
			got := strings.Join(all, "\n")
			if c.want == "" && got != "" || !strings.HasPrefix(got, c.want) || strings.Contains(c.want, " / ") && got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// Lint has warnings for classes whose node selector does not suit how their pods are counted.
func TestSelectors(t *testing.T) {
	const prefix = "feature.node.kubernetes.io/handler.kata"
	for _, c := range []struct{ what, rest, want string }{
		{"by presence, and counted", "overhead: {podFixed: {" + prefix + ".pods: 1}}\nscheduling:\n  nodeSelector:\n    " + prefix + ".present: \"true\"\n", ""},
		{"counted", "overhead: {podFixed: {" + prefix + ".pods: 1}}\n", ""},
		{"by presence", "scheduling:\n  nodeSelector:\n    " + prefix + ".present: \"true\"\n",
			`f:7: warning: pods-not-counted: the label stays when the handler takes no pods, so pods are scheduled to nodes where they wait in ContainerCreating / declare overhead.podFixed: ` + prefix + `.pods: 1`},
		{"by readiness", "scheduling:\n  nodeSelector:\n    " + prefix + ": ready\n",
			`f:7: warning: node-selector-leaves: the label is removed while the handler takes no pods, and a kubelet that starts then ends the running pods / select ` + prefix + `.present: "true" and declare overhead.podFixed: ` + prefix + `.pods: 1, as "kubectl berth generate" does`},
		{"by the label of another handler", "scheduling:\n  nodeSelector:\n    feature.node.kubernetes.io/handler.runc: ready\n", ""},
		{"by nothing", "", `f:1: warning: node-selector-missing: pods of this class can be scheduled on nodes without its handler, where they never start / select nodes by a label of those with the handler, as "kubectl berth generate" does`},
	} {
		t.Run(c.what, func(t *testing.T) {
			objects := test.Value(Parse("f", []byte("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: x}\nhandler: kata\n"+c.rest)))(t)
			got := ""
			for _, f := range Lint(Classes(objects), LintOptions{}) {
				where, _, _ := strings.Cut(f.Where, ": document")
				got += fmt.Sprintf("%s: %s: %s: %s / %s", where, f.Severity, f.Rule, f.Message, f.Advice)
			}
			if got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// Without a list of handlers there are no findings about them; with measurements only, none about
// handlers that were not measured.
func TestOnlyWhatIsKnownIsHeldAgainst(t *testing.T) {
	all := class(t, "x", "handler: nowhere\n")
	for what, o := range map[string]LintOptions{"nothing": {}, "measurements": {Handlers: []Handler{{Name: "runc"}}, MeasuredOnly: true}} {
		if got := Lint(all, o); len(got) > 0 {
			t.Errorf("with %s there are findings: %+v", what, got)
		}
	}
	got := Lint(all, LintOptions{Handlers: []Handler{}})
	if want := `f:5: document 1: error: handler "nowhere" does not exist; the handlers are none; pods of the class stay in ContainerCreating (RuntimeClass "x", unknown-handler)`; len(got) != 1 || got[0].String() != want {
		t.Errorf("with an empty list of handlers: %+v", got)
	}
}
