package runtimeclass

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

func TestGenerate(t *testing.T) {
	tolerate := []corev1.Toleration{{Key: "vm", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	const selector = "scheduling:\n  nodeSelector:\n    feature.node.kubernetes.io/handler.kata.present: \"true\"\n"
	const byReadiness = "scheduling:\n  nodeSelector:\n    feature.node.kubernetes.io/handler.kata: ready\n"
	const counted = "    feature.node.kubernetes.io/handler.kata.pods: \"1\"\n"
	const only = "overhead:\n  podFixed:\n" + counted
	const head = "apiVersion: node.k8s.io/v1\nhandler: kata\nkind: RuntimeClass\nmetadata:\n  name: kata\n"
	for _, c := range []struct {
		what       string
		m          *Measurement
		o          GenerateOptions
		want, note string
	}{
		{"nothing measured", nil, GenerateOptions{}, head + only + selector, "overhead: not measured, none declared"},
		{"no pods measured", measured(0, "1Gi", "1"), GenerateOptions{}, head + only + selector, "overhead: not measured, none declared"},
		{"measured", measured(10, "160.2Mi", "12500u"), GenerateOptions{}, head + "overhead:\n  podFixed:\n    cpu: 13m\n" + counted + "    memory: 161Mi\n" + selector, "overhead: measured, p95 of 10 pods"},
		{"nothing beyond the workload", measured(3, "0", "0"), GenerateOptions{}, head + only + selector, "overhead: none measured in 3 pods"},
		{"nothing beyond the workload of one pod", measured(1, "0", "0"), GenerateOptions{}, head + only + selector, "overhead: none measured in 1 pod"},
		{"one pod", measured(1, "160.2Mi", "12500u"), GenerateOptions{}, head + "overhead:\n  podFixed:\n    cpu: 13m\n" + counted + "    memory: 161Mi\n" + selector, "overhead: measured, p95 of 1 pod"},
		{"any node", nil, GenerateOptions{AnyNode: true}, head + only, ""},
		{"without capacity", measured(10, "160.2Mi", "0"), GenerateOptions{NoCapacity: true}, head + "overhead:\n  podFixed:\n    memory: 161Mi\n" + byReadiness, ""},
		{"any node, without capacity", nil, GenerateOptions{AnyNode: true, NoCapacity: true}, head, ""},
		{"tolerations", nil, GenerateOptions{AnyNode: true, NoCapacity: true, Tolerations: tolerate}, head + "scheduling:\n  tolerations:\n  - effect: NoSchedule\n    key: vm\n    operator: Exists\n", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			class, note := Generate(Handler{Name: "kata", Overhead: c.m}, c.o)
			text, err := yaml.Marshal(class)
			if err != nil || string(text) != c.want || c.note != "" && note != c.note {
				t.Errorf("%v: the note is %q, the class\n%s", err, note, text)
			}
			objects := test.Value(Parse("f", text))(t)
			if all := Lint(Classes(objects), LintOptions{Handlers: []Handler{{Name: "kata", Overhead: c.m}}}); slices.ContainsFunc(all, func(f Finding) bool { return f.Severity == Error }) {
				t.Errorf("the generated class has lint errors: %+v", all)
			}
		})
	}
}

// The facts about a handler are in the annotations of its class, and can be read back.
func TestGenerateAnnotates(t *testing.T) {
	h := Handler{Name: "kata", Default: true, State: Ready, Overhead: measured(3, "1Mi", "1m"), Table: capability.Table{Isolation: capability.VM, IsolationSource: capability.Declared, Conforms: []string{"sandboxed/v1", "vm/v1"}}}
	h.Set(capability.HostPID, capability.No, capability.Declared, "it's \"a kernel\" <of> its own")
	h.Set(capability.Exec, capability.Yes, capability.Ran, "built with something")
	kept := map[capability.Name]capability.Known{
		capability.HostPID: {Answer: capability.No, Note: h.Of(capability.HostPID).Note}, capability.Exec: {Answer: capability.Yes},
	}
	// What a probe or a failed self-check found on one node, and what is unknown, is not annotated.
	h.Set(capability.AppArmor, capability.No, capability.Probed, "this node does not have AppArmor")
	h.Set(capability.HugePages, capability.Yes, capability.Probed, "")
	h.Set(capability.InPlaceResize, capability.No, capability.Ran, "the self-check pod failed with it: EBUSY")
	h.Set(capability.Devices, capability.Unknown, "", "the self-check pod failed with it: EBUSY")
	c, _ := Generate(h, GenerateOptions{})
	if got, want := c.Annotations[CapabilitiesAnnotation], `{"exec":{"answer":"yes"},"host-pid":{"answer":"no","note":"it's \"a kernel\" \u003cof\u003e its own"}}`; got != want || c.Annotations[IsolationAnnotation] != "vm" || c.Annotations[DefaultAnnotation] != "true" || c.Annotations[ConformsAnnotation] != "sandboxed/v1,vm/v1" {
		t.Errorf("the annotations are %v", c.Annotations)
	}
	got, err := Class{RuntimeClass: c}.Annotated()
	if err != nil || !got.Default || got.Name != "kata" || got.Isolation != capability.VM || !maps.Equal(got.Capabilities, kept) || !slices.Equal(got.Conforms, h.Conforms) {
		t.Errorf("read back: %v: %+v", err, got)
	}
	if c, _ := Generate(Handler{Name: "kata"}, GenerateOptions{}); len(c.Annotations) > 0 {
		t.Errorf("the class of a handler without facts has the annotations %v", c.Annotations)
	}
}

// The class of a handler with the longest valid name is valid.
func TestGenerateForTheLongestName(t *testing.T) {
	c, _ := Generate(Handler{Name: strings.Repeat("h", 63)}, GenerateOptions{})
	if got := Lint([]Class{{Version: "v1", RuntimeClass: c}}, LintOptions{}); len(got) > 0 {
		t.Error(got)
	}
	if !Counted(c) {
		t.Errorf("pods of the class are not counted: %v", c.Overhead)
	}
}

func TestParseToleration(t *testing.T) {
	for text, want := range map[string]corev1.Toleration{
		"vm":                        {Key: "vm", Operator: "Exists"},
		"vm:NoSchedule":             {Key: "vm", Operator: "Exists", Effect: "NoSchedule"},
		"vm=yes":                    {Key: "vm", Operator: "Equal", Value: "yes"},
		"example.com/vm=:NoExecute": {Key: "example.com/vm", Operator: "Equal", Effect: "NoExecute"},
	} {
		if got, err := ParseToleration(text); err != nil || got != want {
			t.Errorf("%s is read as %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":NoSchedule", "=x"} {
		if got, err := ParseToleration(text); err == nil {
			t.Errorf("%q is read as %+v, want an error", text, got)
		}
	}
}

func TestInventory(t *testing.T) {
	const good = "handlers:\n- name: runc\n  default: true\n  isolation: shared-kernel\n  overhead: {pods: 3, memory: {p50: 1Mi, p95: 2Mi, max: 3Mi}, cpu: {p50: 1m, p95: 2m, max: 3m}}\n  capabilities:\n    seccomp: {answer: \"yes\", source: declared}\n- {name: kata, state: not-ready, reason: no kvm}\n"
	all, err := ParseInventory("f", []byte(good))
	if err != nil || len(all) != 2 || all[0].Of("seccomp").Answer != "yes" || all[0].Overhead.Pods != 3 || all[1].takesPods() {
		t.Errorf("read the inventory: %v: %+v", err, all)
	}
	for text, want := range map[string]string{
		"handlers: [{name: a}, {name: a}]\n":                                   `f:1: document 1: handlers[1].name: duplicate handler "a"`,
		"handlers:\n- {}\n":                                                    "f:2: document 1: handlers[0].name: handler without a name",
		"handlers:\n- name: A\n":                                               `f:2: document 1: handlers[0].name: "A" is not a valid handler name: `,
		"handlers:\n- name: a\n  isolation: strong\n":                          `f:2: document 1: handlers[0]: isolation "strong" must be one of`,
		"handlers:\n- name: a\n  overhead: {pods: -1}\n":                       "f:3: document 1: handlers[0].overhead: pods: -1 is negative",
		"handlers:\n- name: a\n  overhead: {pods: 1, cpu: {p50: 2, p95: 1}}\n": "f:3: document 1: handlers[0].overhead: cpu: p50 2, p95 1 and max 0 are not in ascending order",
		"handlers:\n- name: a\n  overhead: {pods: 1, cpu: {pods: -1}}\n":       "f:3: document 1: handlers[0].overhead: cpu: pods: -1 is negative",
		"handlers:\n- name: a\n  capability: {}\n":                             `f:3: document 1: unknown field "handlers[0].capability"`,
		"handlers: runc\n":                                                     "f:1: document 1: is not a list of handlers: handlers cannot be a string",
		"":                                                                     "f: is not a list of handlers: it has 0 documents instead of one",
		"a: [\n":                                                               "f:",
	} {
		if all, err := ParseInventory("f", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) || all != nil {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	names, err := ParseNames("runc, kata,runc")
	if err != nil || len(names) != 2 || names[1].Name != "kata" {
		t.Errorf("read names: %v, %+v", err, names)
	}
	for _, text := range []string{"", "runc,", "runc.v2"} {
		test.Fails(t, test.Err(ParseNames(text)), "%q is accepted as a list of names", text)
	}
	both := WithMeasurements(names, all)
	if both[0].Overhead == nil || both[1].Overhead != nil || names[0].Overhead != nil {
		t.Errorf("with measurements the handlers are %+v", both)
	}
}

func TestChoose(t *testing.T) {
	all := []Handler{{Name: "runc", State: Ready}, {Name: "kata", State: "cordoned"}, {Name: "crun"}}
	names := func(handlers []Handler) string {
		text := ""
		for _, h := range handlers {
			text += h.Name + " "
		}
		return text
	}
	for _, c := range []struct {
		named                []string
		chosen, passed, fail string
	}{
		{nil, "runc crun ", "kata ", ""},
		{[]string{"kata", "runc"}, "kata runc ", "", ""},
		{[]string{"runc", "rucn"}, "", "", `handler "rucn" does not exist; there are runc, kata, crun`},
		{[]string{"runc", "katta"}, "", "", `handler "katta" does not exist; there are runc, kata, crun (did you mean "kata"?)`},
		{[]string{"x"}, "", "", `handler "x" does not exist; there are runc, kata, crun`},
	} {
		chosen, passed, err := Choose(all, c.named)
		fail := ""
		if err != nil {
			fail = err.Error()
		}
		if names(chosen) != c.chosen || names(passed) != c.passed || fail != c.fail {
			t.Errorf("choose %v: got %v, passed over %v, %v", c.named, chosen, passed, err)
		}
	}
}
