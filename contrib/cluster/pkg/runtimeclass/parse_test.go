package runtimeclass

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

const podText = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n"

func TestWhatCannotBeReadSaysWhere(t *testing.T) {
	for _, c := range []struct{ what, text, want string }{
		{"not YAML", "apiVersion: v1\nkind: Pod\n  metadata: x\n", "f:3: document 1: is not YAML: mapping values are not allowed in this context"},
		{"not YAML in the second document", podText + "---\n# a comment\n\n[oops\n", "f:8: document 2: is not YAML: "},
		{"tabs", "apiVersion: v1\n\tkind: Pod\n", "f:2: document 1: is not YAML: found a tab character that violates indentation"},
		{"a key twice", "apiVersion: v1\nkind: Pod\nkind: Pod\n", `f:3: document 1: is not YAML: key "kind" already set in map`},
		{"not UTF-8", "apiVersion: \xff\n", "f: is not UTF-8 text, so neither YAML nor JSON"},
		{"a string", "just words\n", "f:1: document 1: is not a Kubernetes object: must be a mapping with apiVersion and kind (it is a string)"},
		{"a list", "- a\n- b\n", "f:1: document 1: is not a Kubernetes object: must be a mapping with apiVersion and kind (it is a list)"},
		{"no version", "kind: Pod\n", "f:1: document 1: is not a Kubernetes object: missing apiVersion"},
		{"no version and kind", "# first\n\nspec: {}\n", "f:3: document 1: is not a Kubernetes object: missing apiVersion and kind"},
		{"two pods", podText + "---\n" + podText + "  \n", ""},
		{"an unknown field", strings.Replace(podText, "{containers", "{hostNetwrok: true, containers", 1), `f:4: document 1: unknown field "spec.hostNetwrok"`},
		{"a field in another case", strings.Replace(podText, "{containers", "{hostnetwork: true, containers", 1), `f:4: document 1: unknown field "spec.hostnetwork"`},
		{
			"an unknown field in a list", "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(podText), "\n", "\n  ") +
				"\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: q}\n  spec:\n    containers:\n    - name: c\n      imagine: i\n",
			`f:14: document 1: unknown field "spec.containers[0].imagine"`,
		},
		{"a wrong type", strings.Replace(podText, "{containers", "{hostNetwork: maybe, containers", 1), "f:4: document 1: is not a Pod: spec.hostNetwork cannot be a string"},
		{"a wrong quantity", "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: x}\nhandler: x\noverhead: {podFixed: {memory: much}}\n", "f:1: document 1: is not a RuntimeClass: quantities must match the regular expression"},
		{"the handler where v1alpha1 has it", "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: x}\nspec: {runtimeHandler: x}\n", `f:4: document 1: unknown field "spec"`},
		{"not JSON", "{\"apiVersion\": \"v1\",\n \"kind\": \"Pod\"\n \"metadata\": {}}", "f:2: document 1: is not YAML: did not find expected"},
		{"lists in lists", strings.Repeat(`{"apiVersion": "v1", "kind": "List", "items": [`, 6) + strings.Repeat("]}", 6), "has lists nested more than 4 deep"},
		{"items that are not a list", "apiVersion: v1\nkind: List\nitems: {a: b}\n", "f:3: document 1: is not a List: items cannot be a mapping"},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, err := Parse("f", []byte(c.text))
			if c.want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.HasPrefix(c.want, "f:") && !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestEveryMistakeIsSaid(t *testing.T) {
	text := strings.Repeat("---\nkind: Pod\n", 30)
	_, err := Parse("f", []byte(text))
	var all Problems
	if !errors.As(err, &all) || len(all) != 30 {
		t.Fatalf("got %v, want 30 problems", err)
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 21 || lines[20] != "and 10 more like these" || !strings.HasPrefix(lines[2], "f:6: document 3: ") {
		t.Errorf("got\n%v", err)
	}
}

func TestFormsOfFiles(t *testing.T) {
	const class = `{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "x"}, "handler": "h"}`
	for what, c := range map[string]struct {
		text  string
		names string
	}{
		"nothing":                     {"", ""},
		"comments":                    {"# nothing\n---\n# here\n--- # and here\n", ""},
		"null":                        {"null\n", ""},
		"one":                         {podText, "Pod p"},
		"dashes all around":           {"---\n" + podText + "---\n---\n" + podText + "---\n", "Pod p, Pod p"},
		"byte order mark":             {"\ufeff" + podText, "Pod p"},
		"line ends of Windows":        {strings.ReplaceAll(podText+"---\n"+podText, "\n", "\r\n"), "Pod p, Pod p"},
		"content after dashes":        {"--- " + class + "\n--- # second\n" + class + "\n", "RuntimeClass x, RuntimeClass x"},
		"dashes in a text":            {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  a: |\n    ---\n    b\n", "ConfigMap m"},
		"a directive":                 {"%YAML 1.1\n---\n" + podText, "Pod p"},
		"dots between":                {podText + "...\n" + podText, "Pod p, Pod p"},
		"dots at the end":             {podText + "...\n# end\n", "Pod p"},
		"dots in a text":              {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  a: \"\n...x\n\"\n", "ConfigMap m"},
		"JSON":                        {class, "RuntimeClass x"},
		"several JSON objects":        {class + class + "\n" + class, "RuntimeClass x, RuntimeClass x, RuntimeClass x"},
		"flow style":                  {"{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: z}, handler: h}\n", "RuntimeClass z"},
		"two documents in flow style": {"{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: z}, handler: h}\n---\n" + class, "RuntimeClass z, RuntimeClass x"},
		"a list of its kind":          {"apiVersion: node.k8s.io/v1\nkind: RuntimeClassList\nitems:\n- {metadata: {name: a}, handler: h}\n- " + class + "\n", "RuntimeClass a, RuntimeClass x"},
		"a list in a list":            {"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: PodList\n  metadata: {resourceVersion: \"1\"}\n  items: [{metadata: {name: a}}]\n", "Pod a"},
		"other kinds":                 {"apiVersion: example.com/v1\nkind: Job\nmetadata: {name: j, namespace: ns}\nanything: 1\n", "Job ns/j"},
		"generateName":                {"apiVersion: v1\nkind: Pod\nmetadata: {generateName: p-}\n", "Pod p-…"},
	} {
		t.Run(what, func(t *testing.T) {
			objects := test.Value(Parse("f", []byte(c.text)))(t)
			var names []string
			for _, o := range objects {
				names = append(names, o.String())
			}
			test.Equal(t, "the objects", strings.Join(names, ", "), c.names)
		})
	}
}

func TestLinesOfFlows(t *testing.T) {
	_, err := Parse("f", []byte("{apiVersion: v1, kind: Namespace}\n---\n{apiVersion: v1, kind: Pod,\n x: 1}\n"))
	if err == nil || err.Error() != `f:4: document 2: unknown field "x"` {
		t.Errorf("got %v", err)
	}
}

func TestTenThousandPodsInAList(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for i := range 10_000 {
		fmt.Fprintf(&b, "- {apiVersion: v1, kind: Pod, metadata: {name: p%d}}\n", i)
	}
	objects, err := Parse("f", []byte(b.String()))
	if err != nil || len(objects) != 10_000 || objects[9_999].Name != "p9999" {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	test.Equal(t, "the last name is on line", objects[9_999].Line("metadata.name"), 3+10_000)
}

func TestFilesThatAreTooLarge(t *testing.T) {
	if _, err := Parse("f", make([]byte, maxSize+1)); err == nil || err.Error() != "f: is larger than 64 MiB" {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{podText, "{", "---\n", "{\"a\":1}\n---\n", "- &a [*a]\n", "kind: List\napiVersion: v1\nitems: [[], {}, null]\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		objects, err := Parse("f", text)
		if err != nil && (objects != nil || err.Error() == "") {
			t.Errorf("an empty error, or an error with objects: %v with %d objects", err, len(objects))
		}
		for _, o := range objects {
			if o.Where("") == "" || o.Line("spec") < 1 {
				t.Errorf("%s has no place in the file", o)
			}
			if o.Pod != nil {
				Requirements(o.Pod.Pod)
			}
		}
		Lint(Classes(objects), LintOptions{})
	})
}
