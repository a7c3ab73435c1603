package runtimeclass

import (
	"bytes"
	"strings"
	"testing"
)

func TestMigrate(t *testing.T) {
	const beta = "# Ours.\napiVersion: \"node.k8s.io/v1beta1\" # soon gone\nkind: RuntimeClass\nmetadata:\n    name:   x   # wide\nhandler: runc\n"
	for _, c := range []struct{ what, text, want, changes string }{
		{"nothing to do", podText, podText, ""},
		{"beta keeps its form", beta, strings.Replace(beta, "v1beta1", "v1", 1), `f:2: document 1: RuntimeClass "x": node.k8s.io/v1beta1 is now node.k8s.io/v1`},
		{
			"beta among others", podText + "---\n" + beta + "---\n" + strings.Replace(beta, "name:   x", "name: z", 1),
			podText + "---\n" + strings.Replace(beta, "v1beta1", "v1", 1) + "---\n" + strings.Replace(strings.Replace(beta, "name:   x", "name: z", 1), "v1beta1", "v1", 1),
			"f:7: document 2: RuntimeClass \"x\": node.k8s.io/v1beta1 is now node.k8s.io/v1\nf:14: document 3: RuntimeClass \"z\": node.k8s.io/v1beta1 is now node.k8s.io/v1",
		},
		{
			"beta in a list", "apiVersion: node.k8s.io/v1beta1\nkind: RuntimeClassList\nitems:\n- {metadata: {labels: {a: b, c: \"d\"}, name: a}, handler: a}\n- {metadata: {name: b, annotations: {a: ü}}, apiVersion: 'node.k8s.io/v1beta1', kind: RuntimeClass, handler: b}\n",
			"apiVersion: node.k8s.io/v1\nkind: RuntimeClassList\nitems:\n- {metadata: {labels: {a: b, c: \"d\"}, name: a}, handler: a}\n- {metadata: {name: b, annotations: {a: ü}}, apiVersion: 'node.k8s.io/v1', kind: RuntimeClass, handler: b}\n",
			"f:4: document 1: RuntimeClass \"a\": node.k8s.io/v1beta1 is now node.k8s.io/v1\nf:5: document 1: RuntimeClass \"b\": node.k8s.io/v1beta1 is now node.k8s.io/v1",
		},
		{
			"alpha keeps comments and order",
			"---\n# A class.\napiVersion: node.k8s.io/v1alpha1\nkind: RuntimeClass\nmetadata:\n  name: x # its name\n# What it is.\nspec:\n  # Who runs it.\n  runtimeHandler: kata # a VM\n  overhead:\n    podFixed:\n      memory: 160Mi\n  scheduling:\n    nodeSelector: {vm: \"yes\"}\n",
			"---\n# A class.\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: x # its name\n# What it is.\n# Who runs it.\nhandler: kata # a VM\noverhead:\n  podFixed:\n    memory: 160Mi\nscheduling:\n  nodeSelector: {vm: \"yes\"}\n",
			`f:3: document 1: RuntimeClass "x": node.k8s.io/v1alpha1 is now node.k8s.io/v1`,
		},
		{
			"handlers get new names", "apiVersion: node.k8s.io/v1alpha1\nkind: RuntimeClass\nmetadata: {name: x}\nspec: {runtimeHandler: kata.v2}\n---\napiVersion: node.k8s.io/v1alpha1\nkind: RuntimeClass\nmetadata: {name: z}\nspec: {}\n",
			"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: x}\nhandler: kata-v2\n---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: z}\nhandler: runc\n",
			"f:1: document 1: RuntimeClass \"x\": node.k8s.io/v1alpha1 is now node.k8s.io/v1, handler \"kata.v2\" is now \"kata-v2\"\nf:6: document 2: RuntimeClass \"z\": node.k8s.io/v1alpha1 is now node.k8s.io/v1, handler \"\" is now \"runc\"",
		},
		{
			"a class of v1 in a list gets the new name, too", "apiVersion: v1\nkind: List\nitems:\n  - {apiVersion: node.k8s.io/v1beta1, kind: RuntimeClass, metadata: {name: x}, handler: kata.v2}\n  - {apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: z}, handler: kata.v2}\n",
			"apiVersion: v1\nkind: List\nitems:\n  - {apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: x}, handler: kata-v2}\n  - {apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: z}, handler: kata-v2}\n",
			`f:4: document 1: RuntimeClass "x": node.k8s.io/v1beta1 is now node.k8s.io/v1, handler "kata.v2" is now "kata-v2"`,
		},
		{
			"other documents and comments stay", "# License.\n---\n# Nothing.\n---\n" + beta + "---\n# The end.\n",
			"# License.\n---\n# Nothing.\n---\n" + strings.Replace(beta, "v1beta1", "v1", 1) + "---\n# The end.\n",
			`f:6: document 1: RuntimeClass "x": node.k8s.io/v1beta1 is now node.k8s.io/v1`,
		},
		{
			"a list of v1alpha1", "apiVersion: node.k8s.io/v1alpha1\nkind: RuntimeClassList\nitems:\n- metadata: {name: x}\n  spec: {runtimeHandler: a}\n",
			"apiVersion: node.k8s.io/v1\nkind: RuntimeClassList\nitems:\n  - metadata: {name: x}\n    handler: a\n",
			`f:4: document 1: RuntimeClass "x": node.k8s.io/v1alpha1 is now node.k8s.io/v1`,
		},
		{
			"several JSON objects", `{"kind": "RuntimeClass", "apiVersion": "node.k8s.io/v1beta1", "metadata": {"name": "x"}, "handler": "a"} {"kind": "Namespace", "apiVersion": "v1"}`,
			"{\n  \"apiVersion\": \"node.k8s.io/v1\",\n  \"handler\": \"a\",\n  \"kind\": \"RuntimeClass\",\n  \"metadata\": {\n    \"name\": \"x\"\n  }\n} {\"kind\": \"Namespace\", \"apiVersion\": \"v1\"}",
			`f:1: document 1: RuntimeClass "x": node.k8s.io/v1beta1 is now node.k8s.io/v1`,
		},
		{
			"JSON", `{"kind": "RuntimeClass", "apiVersion": "node.k8s.io/v1alpha1", "metadata": {"name": "x"}, "spec": {"runtimeHandler": "a", "scheduling": {"tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9007199254740993}]}}}`,
			"{\n  \"apiVersion\": \"node.k8s.io/v1\",\n  \"handler\": \"a\",\n  \"kind\": \"RuntimeClass\",\n  \"metadata\": {\n    \"name\": \"x\"\n  },\n  \"scheduling\": {\n    \"tolerations\": [\n      {\n        \"effect\": \"NoExecute\",\n        \"operator\": \"Exists\",\n        \"tolerationSeconds\": 9007199254740993\n      }\n    ]\n  }\n}",
			`f:1: document 1: RuntimeClass "x": node.k8s.io/v1alpha1 is now node.k8s.io/v1`,
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			m, err := Migrate("f", []byte(c.text), map[string]string{"": "runc", "kata.v2": "kata-v2"})
			if err != nil || len(m.Findings) > 0 {
				t.Fatalf("Migrate returns %v, with the findings %+v", err, m.Findings)
			}
			if string(m.Text) != c.want {
				t.Errorf("got\n%s\nwant\n%s", m.Text, c.want)
			}
			if got := strings.Join(m.Changes, "\n"); got != c.changes {
				t.Errorf("the changes are\n%s\nwant\n%s", got, c.changes)
			}
			again, err := Migrate("f", m.Text, nil)
			if err != nil || !bytes.Equal(again.Text, m.Text) || len(again.Changes) > 0 {
				t.Errorf("a second migration changes the text: %v, %v\n%s", err, again.Changes, again.Text)
			}
		})
	}
}

// v1alpha1 allowed handler names that v1 does not allow.
func TestMigrateFlagsHandlersThatCannotBe(t *testing.T) {
	for handler, want := range map[string]string{
		`kata.v2`: `"kata.v2" is not a valid handler name: must not contain dots; rename it to "kata-v2" in the runtime's configuration and here; rename it by --handler OLD=NEW`,
		`""`:      `handler without a name; rename it by --handler OLD=NEW`,
	} {
		m, err := Migrate("f", []byte("apiVersion: node.k8s.io/v1alpha1\nkind: RuntimeClass\nmetadata: {name: x}\nspec:\n  runtimeHandler: "+handler+"\n"), nil)
		if err != nil || len(m.Findings) != 1 || m.Findings[0].Message+"; "+m.Findings[0].Advice != want || !strings.HasPrefix(m.Findings[0].Where, "f:4: ") {
			t.Errorf("handler %s: %v, %+v", handler, err, m.Findings)
		}
	}
}

func TestMigrateRefusesWhatItCannotRead(t *testing.T) {
	if m, err := Migrate("f", []byte("apiVersion: node.k8s.io/v1beta1\nkind: RuntimeClass\nspec: {}\n"), nil); err == nil || m.Text != nil {
		t.Errorf("got %v, %s", err, m.Text)
	}
}
