package policy

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

var update = flag.Bool("update", false, "write the golden files")

func inventory(t *testing.T, text string) []runtimeclass.Handler {
	t.Helper()
	return test.Value(runtimeclass.ParseInventory("handlers.yaml", []byte(text)))(t)
}

func rulesOf(t *testing.T, text string) []Rule {
	t.Helper()
	return test.Value(ParseRules("rules.yaml", []byte(text)))(t)
}

func aClass(name, handler, memory string) runtimeclass.Class {
	c := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}
	if memory != "" {
		c.Overhead = &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}
	}
	return runtimeclass.Class{Version: "v1", RuntimeClass: c}
}

const threeHandlers = `handlers:
- name: runc
  default: true
  isolation: shared-kernel
  capabilities: {host-network: {answer: "yes", source: ran}, privileged: {answer: "yes", source: ran}, exec: {answer: "yes", source: ran}}
- name: gvisor
  isolation: user-space-kernel
  capabilities: {host-network: {answer: "no", source: declared}, privileged: {answer: "yes", source: ran}, exec: {answer: "yes", source: ran}}
- name: kata
  isolation: vm
  state: cordoned
  capabilities: {host-network: {answer: "no", source: declared, note: it's a kernel of its own}, privileged: {answer: unknown}, exec: {answer: "yes", source: ran}}
`

// knownAll sets all capabilities that a handler's table lacks to yes.
func knownAll(all []runtimeclass.Handler) []runtimeclass.Handler {
	for i := range all {
		for _, name := range runtimeclass.Asked() {
			if _, there := all[i].Capabilities[name]; !there {
				all[i].Set(name, capability.Yes, capability.Ran, "")
			}
		}
	}
	return all
}

func written(t *testing.T, all []runtime.Object) []byte {
	t.Helper()
	var texts [][]byte
	for _, one := range test.Value(Unstructured(all))(t) {
		texts = append(texts, test.Value(yaml.Marshal(one))(t))
	}
	return bytes.Join(texts, []byte("---\n"))
}

// The generated policies are as in the golden files. integration/policy sends them to an API server.
func TestGenerate(t *testing.T) {
	classes := []runtimeclass.Class{aClass("runc", "runc", ""), aClass("kata-large", "kata", "300Mi"), aClass("sandboxed", "kata", "160Mi"), aClass("gvisor", "gvisor", "")}
	rules := test.Value(os.ReadFile(filepath.Join("testdata", "rules.yaml")))(t)
	for name, o := range map[string]Options{
		"pods":  {Workloads: IgnoreWorkloads, Exempt: []string{"kube-system"}},
		"every": {Workloads: IgnoreWorkloads, Classes: classes[:1], Handlers: []runtimeclass.Handler{nothing("runc")}},
		"state": {Workloads: IgnoreWorkloads, State: true},
		"rules": {Workloads: DenyWorkloads, Rules: rulesOf(t, string(rules))},
	} {
		t.Run(name, func(t *testing.T) {
			if o.Classes == nil {
				o.Classes, o.Handlers = classes, knownAll(inventory(t, threeHandlers))
			}
			all := test.Value(Generate(o))(t)
			got := written(t, all)
			file := filepath.Join("testdata", name+".golden")
			if *update {
				test.Must(t, os.WriteFile(file, got, 0o644))
			}
			want := test.Value(os.ReadFile(file))(t)
			if !bytes.Equal(got, want) {
				t.Errorf("the policies differ from %s; got\n%s", file, got)
			}
		})
	}
}

// The same input gives the same text, because policies are kept in repositories.
func TestGenerateIsStable(t *testing.T) {
	first := ""
	for range 20 {
		all := test.Value(Generate(Options{Classes: []runtimeclass.Class{aClass("a", "runc", ""), aClass("b", "kata", ""), aClass("c", "gvisor", "")}, Handlers: inventory(t, threeHandlers), Workloads: WarnWorkloads,
			Rules: rulesOf(t, "rules: [{name: x, pods: {labels: {a: b, c: d, e: f}}, isolation: strongest}]")}))(t)
		text := written(t, all)
		if first == "" {
			first = string(text)
		}
		if first != string(text) {
			t.Fatalf("got\n%s\nwant, as at first,\n%s", text, first)
		}
	}
}

// nothing is a handler that supports nothing.
func nothing(name string) runtimeclass.Handler {
	h := runtimeclass.Handler{Name: name}
	for _, name := range runtimeclass.Asked() {
		h.Set(name, capability.No, capability.Declared, "")
	}
	return h
}

// Policies that an API server would refuse as too large are refused here, with the reason.
func TestTooLarge(t *testing.T) {
	var none []runtimeclass.Handler
	var classes []runtimeclass.Class
	for i := range 60 {
		h := runtimeclass.Handler{Name: fmt.Sprintf("none-%d", i)}
		for _, name := range runtimeclass.Asked() {
			h.Set(name, capability.No, capability.Declared, h.Name+strings.Repeat("x", 100))
		}
		none, classes = append(none, h), append(classes, aClass(fmt.Sprintf("c-%d", i), h.Name, ""))
	}
	vm := runtimeclass.Handler{Name: "vm"}
	vm.Isolation = capability.VM
	var many []runtimeclass.Class
	for i := range 1500 {
		many = append(many, aClass(fmt.Sprintf("a-class-with-a-name-of-some-length-%d", i), "vm", ""))
	}
	for want, o := range map[string]Options{
		"notes_no": {Classes: classes, Handlers: none},
		"rule_1":   {Classes: many, Handlers: knownAll([]runtimeclass.Handler{vm}), Rules: rulesOf(t, "rules: [{name: a, isolation: strongest}]")},
	} {
		want = "the policies would be too large for an API server: the expression " + want + " has "
		if all, err := Generate(o); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %d objects, %v; want %s", len(all), err, want)
		}
	}
}

func TestKnown(t *testing.T) {
	annotated := func(name, handler string, annotations map[string]string) runtimeclass.Class {
		c := aClass(name, handler, "")
		c.Annotations = annotations
		return c
	}
	const able, wrong = `{"exec":{"answer":"yes"}}`, `{"exec":{"answer":"maybe"}}`
	kata := annotated("vm", "kata", map[string]string{runtimeclass.IsolationAnnotation: "vm", runtimeclass.CapabilitiesAnnotation: able})
	runc := annotated("std", "runc", map[string]string{runtimeclass.CapabilitiesAnnotation: able, runtimeclass.DefaultAnnotation: "true"})
	crun := annotated("new", "crun", map[string]string{runtimeclass.CapabilitiesAnnotation: able, runtimeclass.DefaultAnnotation: "true"})
	plain := aClass("plain", "other", "")
	for _, c := range []struct {
		what, want, err string
		o               Options
	}{
		{"annotations", "=runc std=runc vm=kata", "", Options{Classes: []runtimeclass.Class{kata, plain, runc}}},
		{"annotations and a list", "plain=other vm=kata", "", Options{Classes: []runtimeclass.Class{kata, plain}, Handlers: inventory(t, "handlers: [{name: other}]")}},
		{"a default by the option", "=kata std=runc vm=kata", "", Options{Classes: []runtimeclass.Class{kata, runc}, Default: "kata"}},
		{"a default by the option, in the list", "=other std=runc vm=kata", "", Options{Classes: []runtimeclass.Class{kata, runc}, Default: "other", Handlers: inventory(t, "handlers: [{name: other}]")}},
		{"two defaults", "", "more than one default handler: runc, crun; choose one by --default", Options{Classes: []runtimeclass.Class{runc, crun}}},
		{"an unknown default", "", `--default: handler "crun" is not known; known are runc, kata`, Options{Classes: []runtimeclass.Class{kata, runc}, Default: "crun"}},
		{"no annotations", "", "nothing is known of what handlers can do: use --handlers", Options{Classes: []runtimeclass.Class{plain}}},
		{"a wrong isolation", "", `annotation berth.dev/isolation of RuntimeClass x has the wrong value: isolation "strong" must be one of`, Options{Classes: []runtimeclass.Class{annotated("x", "x", map[string]string{runtimeclass.IsolationAnnotation: "strong"})}}},
		{"a wrong answer", "", `annotation berth.dev/capabilities of RuntimeClass x has a wrong value: capabilities.exec.answer "maybe" must be one of`, Options{Classes: []runtimeclass.Class{annotated("x", "x", map[string]string{runtimeclass.CapabilitiesAnnotation: wrong})}}},
		{"not JSON", "", "annotation berth.dev/capabilities of RuntimeClass x is not a mapping of capabilities: ", Options{Classes: []runtimeclass.Class{annotated("x", "x", map[string]string{runtimeclass.CapabilitiesAnnotation: "exec"})}}},
		{"not a boolean", "", `annotation berth.dev/default of RuntimeClass x is "yes"; it must be true or false`, Options{Classes: []runtimeclass.Class{annotated("x", "x", map[string]string{runtimeclass.DefaultAnnotation: "yes"})}}},
	} {
		t.Run(c.what, func(t *testing.T) {
			all, err := known(c.o)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, %v, want the error %q", all, err, c.err)
				}
				return
			}
			var got []string
			for _, one := range all {
				got = append(got, one.name+"="+one.handler.Name)
			}
			if err != nil || strings.Join(got, " ") != c.want {
				t.Errorf("got %v, %v, want %s", got, err, c.want)
			}
		})
	}
}

// A policy refuses a missing capability only if the handler lacks it on every node.
func TestJudged(t *testing.T) {
	const missing, doubted = ", but the handler does not support it", ", but the handler may not support it"
	no := func(of capability.Source, note string) capability.Known {
		return capability.Known{Answer: capability.No, Source: of, Note: note}
	}
	for _, c := range []struct {
		what      string
		name      capability.Name
		known     capability.Known
		byDefault bool
		want      string
	}{
		{"missing by declaration", capability.HostPID, no(capability.Declared, "a kernel of its own"), false, missing + ": a kernel of its own"},
		{"missing by a self-check pod", capability.Exec, no(capability.Ran, "it failed"), false, missing + ": it failed"},
		{"missing without a source", capability.HostPID, no("", ""), false, missing},
		{"missing in this build of the runtime", capability.SELinux, no(capability.Declared, "runc was built without SELinux"), false, missing + ": runc was built without SELinux"},
		{"missing by a probe of one node", capability.SELinux, no(capability.Probed, "this node does not have SELinux"), false, doubted + ": the node that was asked answers no: this node does not have SELinux"},
		{"missing by a probe, without a note", capability.HugePages, no(capability.Probed, ""), false, doubted + ": the node that was asked answers no"},
		{"ignored by the runtime", capability.Sysctls, no(capability.Declared, "it ignores them"), false, doubted + ": it ignores them"},
		{"unknown", capability.Devices, capability.Known{Answer: capability.Unknown, Note: "some"}, false, doubted + ": some"},
		{"missing in one node's default handler", capability.HostPID, no(capability.Declared, "a kernel of its own"), true, doubted + ": the default of the node that was asked does not: a kernel of its own"},
		{"missing in one node's default handler, without a note", capability.Exec, no(capability.Ran, ""), true, doubted + ": the default of the node that was asked does not"},
		{"missing by a probe of one node's default handler", capability.SELinux, no(capability.Probed, "none"), true, doubted + ": the node that was asked answers no: none"},
		{"supported", capability.Exec, capability.Known{Answer: capability.Yes, Source: capability.Ran}, true, ""},
	} {
		h := runtimeclass.Handler{Name: "h", State: "cordoned", Table: capability.Table{Capabilities: map[capability.Name]capability.Known{c.name: c.known}}}
		o := Options{Classes: []runtimeclass.Class{aClass("a", "h", "")}, Handlers: []runtimeclass.Handler{h}}
		if c.byDefault {
			o.Classes, o.Handlers[0].Default = nil, true
		}
		all, err := known(o)
		if err != nil || len(all) != 1 {
			t.Fatalf("%s: %v, %v", c.what, all, err)
		}
		got := ""
		if k := all[0].handler.Of(c.name); k.Answer != capability.Yes {
			got = runtimeclass.MissingCapability{Known: k}.Because()
		}
		test.Equal(t, c.what, got, c.want)
		if cordoned := all[0].handler.WhyNot() != ""; cordoned == c.byDefault {
			t.Errorf("%s: the state of the handler is used: %t", c.what, cordoned)
		}
		if h.Of(c.name) != c.known {
			t.Errorf("%s: the given handler was changed", c.what)
		}
		// With --default, the default handler is certain.
		o.Default = "h"
		if all, err = known(o); err != nil || all[0].name != "" || all[0].handler.WhyNot() == "" || c.known.Answer == capability.No && c.known.Source != capability.Probed && c.name != capability.Sysctls && all[0].handler.Of(c.name) != c.known {
			t.Errorf("%s, by --default: %v, %v", c.what, all, err)
		}
	}
}

// Errors about rules have file, line and key, and list what is allowed.
func TestRulesGivenWrong(t *testing.T) {
	const at = "rules.yaml:"
	for text, want := range map[string]string{
		"":          "rules.yaml: is not a mapping with the key rules: it has 0 documents instead of one",
		"rules: 1":  "is not a mapping with the key rules: rules cannot be a number",
		"rules: []": "has no rules; write them below the key rules",
		"a: [\n":    "is not YAML: ",
		"rules:\n- name: a\n  class: x\nrule: 1\n":                                  at + `4: document 1: unknown field "rule"; allowed are rules (did you mean "rules"?)`,
		"rules:\n- name: a\n  isolatoin: vm\n":                                      at + `3: document 1: unknown field "rules[0].isolatoin"; allowed are name, namespaces, pods, class, isolation, least (did you mean "isolation"?)`,
		"rules:\n- name: a\n  class: x\n  pods:\n    lables: {a: b}\n":              at + `5: document 1: unknown field "rules[0].pods.lables"; allowed are labels, asks (did you mean "labels"?)`,
		"rules:\n- name: a\n  class: x\n  namespaces: {label: {}}\n":                `unknown field "rules[0].namespaces.label"; allowed are names, labels`,
		"rules:\n- class: x\n":                                                      at + "2: document 1: rules[0]: missing name",
		"rules:\n- name: a\n":                                                       at + "2: document 1: rules[0]: missing class or isolation",
		"rules:\n- name: a\n  class: x\n  isolation: vm\n":                          at + "4: document 1: rules[0].isolation: a rule has a class or an isolation, not both",
		"rules:\n- name: a\n  isolation: strong\n":                                  at + `3: document 1: rules[0].isolation: "strong" must be one of strongest, vm, user-space-kernel, shared-kernel`,
		"rules:\n- name: a\n  class: x\n  pods:\n    asks: [exec, hostnetwork]\n":   at + `5: document 1: rules[0].pods.asks[1]: pods cannot ask for "hostnetwork"; allowed are host-network, `,
		"rules:\n- name: a\n  class: x\n  pods: {asks: [checkpoint]}\n":             `pods cannot ask for "checkpoint"`,
		"rules:\n- name: a\n  class: x\n  namespaces: {names: [A]}\n":               at + `4: document 1: rules[0].namespaces.names[0]: "A" is not a name of a namespace: `,
		"rules:\n- name: a\n  class: x\n  namespaces:\n    labels:\n      a b: c\n": at + `6: document 1: rules[0].namespaces.labels[a b]: a b=c is not a label: `,
		"rules:\n- {name: a, isolation: vm, least: vm}":                             at + `2: document 1: rules[0].least: is only for isolation: strongest`,
		"rules:\n- {name: a, isolation: strongest, least: strongest}":               at + `2: document 1: rules[0].least: "strongest" must be one of vm, user-space-kernel, shared-kernel`,
		"rules:\n- {name: a, class: x, namespaces: {names: []}}":                    at + `2: document 1: rules[0].namespaces.names: is empty; leave the key out if it does not matter`,
		"rules:\n- {name: a, class: x, pods: {labels: {}}}":                         at + `2: document 1: rules[0].pods.labels: is empty; leave`,
		// A template prints a missing value in this way.
		"rules:\n- name: a\n  class: x\n  namespaces:\n":                             at + `4: document 1: rules[0].namespaces: is empty; leave`,
		"rules:\n- name: a\n  class: x\n  namespaces:\n    labels:\n":                at + `5: document 1: rules[0].namespaces.labels: is empty; leave`,
		"rules:\n- {name: a, class: x, namespaces: {names: null}}":                   `rules[0].namespaces.names: is empty; leave`,
		"rules:\n- {name: a, class: x, namespaces: {}}":                              `rules[0].namespaces: is empty; leave`,
		"rules:\n- {name: a, class: x, pods: {}}":                                    `rules[0].pods: is empty; leave`,
		"rules:\n- {name: a, class: x, pods: {asks: }}":                              `rules[0].pods.asks: is empty; leave`,
		"rules:\n- {name: a, isolation: strongest, least: }":                         `rules[0].least: is empty; leave`,
		"rules:\n- {name: a, isolation: strongest, least: \"\"}":                     `rules[0].least: is empty; leave`,
		"rules:\n- {name: a, class: x, number: 1e999}":                               `unknown field "rules[0].number"`,
		"- {name: a, class: x}":                                                      `is not a mapping with the key rules: it is a list`,
		"rules:\n- {name: a, class: x}\n- {name: b, class: z}\n":                     at + `3: document 1: rules[1]: is never reached: rule "a" before it is for all pods`,
		"rules:\n- {name: a, class: x, pods: {asks: [exec]}}\n- {name: a, class: z}": at + `3: document 1: rules[1].name: duplicate rule "a"`,
	} {
		if all, err := ParseRules("rules.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || all != nil {
			t.Errorf("%q: got %v, %v\nwant %s", text, all, err, want)
		}
	}
}

// If no class fits a rule, the error lists the classes.
func TestRulesWithoutClasses(t *testing.T) {
	classes := []runtimeclass.Class{aClass("runc", "runc", ""), aClass("sandboxed", "kata", "")}
	for text, want := range map[string]string{
		"rules:\n- name: a\n  class: sandboxd\n":            `rules.yaml:3: document 1: rules[0].class: RuntimeClass "sandboxd" does not exist; there are runc, sandboxed (did you mean "sandboxed"?)`,
		"rules:\n- name: a\n  isolation: user-space-kernel": "rules.yaml:3: document 1: rules[0].isolation: no class gives user-space-kernel; classes give vm (sandboxed), shared-kernel (runc)",
	} {
		if all, err := Generate(Options{Classes: classes, Handlers: inventory(t, threeHandlers), Rules: rulesOf(t, text)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %d objects, %v\nwant %s", text, len(all), err, want)
		}
	}
	// The example of rules in contrib/kubernetes is valid.
	text := test.Value(os.ReadFile(filepath.Join("..", "..", "..", "kubernetes", "classrules.yaml")))(t)
	if all, err := Generate(Options{Classes: classes, Handlers: inventory(t, threeHandlers), Rules: rulesOf(t, string(text))}); err != nil || len(all) == 0 {
		t.Errorf("the example gives %d objects, %v", len(all), err)
	}
	// The example's rules are only for labelled namespaces: otherwise pods that must run on every
	// node, such as those of a CNI plugin, could not run on nodes that the class does not select.
	for _, r := range rulesOf(t, string(text)) {
		if len(r.Namespaces.Labels) == 0 {
			t.Errorf("rule %s of the example is for all namespaces", r.Name)
		}
	}
	// With State, a handler that accepts no pods is not chosen.
	test.Says(t, test.Err(Generate(Options{Classes: classes, Handlers: inventory(t, threeHandlers), State: true, Rules: rulesOf(t, "rules: [{name: a, isolation: vm}]")})), "no class gives vm; classes give shared-kernel (runc)")
}

// If no class is stronger than shared-kernel, strongest has a note, or with least an error.
func TestWeakRules(t *testing.T) {
	runc, vm := aClass("runc", "runc", ""), aClass("sandboxed", "kata", "")
	for name, c := range map[string]struct {
		classes []runtimeclass.Class
		rules   string
		weak    bool
		fails   string
	}{
		"a stronger class":     {[]runtimeclass.Class{runc, vm}, "rules: [{name: a, isolation: strongest}]", false, ""},
		"only shared-kernel":   {[]runtimeclass.Class{runc}, "rules: [{name: a, isolation: strongest}]", true, ""},
		"shared-kernel wanted": {[]runtimeclass.Class{runc}, "rules: [{name: a, isolation: shared-kernel}]", false, ""},
		"weaker than least":    {[]runtimeclass.Class{runc}, "rules: [{name: a, isolation: strongest, least: user-space-kernel}]", false, "no class gives user-space-kernel or stronger; classes give shared-kernel (runc)"},
		"stronger than least":  {[]runtimeclass.Class{runc, vm}, "rules: [{name: a, isolation: strongest, least: user-space-kernel}]", false, ""},
	} {
		o := Options{Classes: c.classes, Handlers: inventory(t, threeHandlers), Rules: rulesOf(t, c.rules)}
		test.Equal(t, fmt.Sprintf("%s: weak", name), strings.Contains(strings.Join(Notes(o), "\n"), "rule a gives pods no more than shared-kernel"), c.weak)
		if _, err := Generate(o); (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %v, want %q", name, err, c.fails)
		}
	}
}

// Many classes of few handlers are not too large: the facts about a handler occur only once.
func TestManyClasses(t *testing.T) {
	h := runtimeclass.Handler{Name: "kata"}
	for _, name := range runtimeclass.Asked() {
		h.Set(name, capability.No, capability.Declared, "it has a kernel of its own, and the node's is not there")
	}
	var classes []runtimeclass.Class
	for i := range 1000 {
		classes = append(classes, aClass(fmt.Sprintf("kata-of-team-%d", i), "kata", ""))
	}
	test.Check(t, test.Err(Generate(Options{Classes: classes, Handlers: []runtimeclass.Handler{h}, Workloads: WarnWorkloads})))
}
