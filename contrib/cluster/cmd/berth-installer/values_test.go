package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/contrib/cluster/pkg/installer"
	"github.com/berth-cri/berth/internal/test"
)

// TestChartsValues reads the values that the chart writes for its pods.
func TestChartsValues(t *testing.T) {
	for path, runtimes := range map[string][]string{
		"../../../../contrib/kubernetes/berth-installer.yaml": nil,
		"../../../../tools/chart/testdata/full.yaml":          {"crun", "gvisor", "kata"},
	} {
		text := test.Value(os.ReadFile(path))(t)
		found := false
		for _, doc := range strings.Split(string(text), "\n---\n") {
			var m struct {
				Kind string            `json:"kind"`
				Data map[string]string `json:"data"`
			}
			test.Must(t, yaml.Unmarshal([]byte(doc), &m))
			if m.Kind != "ConfigMap" {
				continue
			}
			found = true
			v, err := read(strings.NewReader(m.Data["values.json"]))
			test.Checkf(t, err, "%s", path)
			var handlers []string
			for _, r := range v.Runtimes {
				handlers = append(handlers, r.Handler)
			}
			if v.State != installed || !v.Kubelet || !slices.Equal(handlers, runtimes) {
				t.Errorf("the values of %s are %+v, want the runtimes %v", path, v, runtimes)
			}
		}
		if !found {
			t.Errorf("%s has no ConfigMap", path)
		}
	}
}

// The chart accepts the same kinds of runtimes as the installer.
func TestSchemasKinds(t *testing.T) {
	text := test.Value(os.ReadFile("../../../../contrib/charts/berth/values.schema.json"))(t)
	var schema struct {
		Properties struct {
			Runtimes struct {
				PatternProperties map[string]struct {
					Properties struct {
						Kind struct {
							Enum []string `json:"enum"`
						} `json:"kind"`
					} `json:"properties"`
				} `json:"patternProperties"`
			} `json:"runtimes"`
		} `json:"properties"`
	}
	test.Must(t, json.Unmarshal(text, &schema))
	for name, runtime := range schema.Properties.Runtimes.PatternProperties {
		if got := runtime.Properties.Kind.Enum; !slices.Equal(got, installer.Kinds()) {
			t.Errorf("%s: the schema has the kinds %v, the installer %v", name, got, installer.Kinds())
		}
	}
	if len(schema.Properties.Runtimes.PatternProperties) != 1 {
		t.Error("the schema does not have one pattern for runtimes")
	}
}

func TestRead(t *testing.T) {
	for name, c := range map[string]struct{ text, wrong string }{
		"good":                 {`{"state": "removed"}`, ""},
		"no state":             {`{}`, `state "" is not installed or removed`},
		"unknown key":          {`{"state": "installed", "kublet": true}`, `unknown field "kublet"`},
		"unknown runtime":      {`{"state": "installed", "runtimes": [{"handler": "x", "kind": "rkt", "version": "1", "source": "/x"}]}`, `kind "rkt" is not one of`},
		"removed, with config": {`{"state": "removed", "config": "[engine]\nroot = \"/x\""}`, ""},
		"not JSON":             {`state: installed`, "read the values"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(strings.NewReader(c.text))
			if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}

func TestEveryCommandIsDocumented(t *testing.T) {
	text := test.Value(os.ReadFile("../../../../docs/install.md"))(t)
	for _, c := range newRoot().Commands() {
		if !strings.Contains(string(text), "`"+c.CommandPath()) {
			t.Errorf("docs/install.md does not have %q", c.CommandPath())
		}
	}
}

// TestEveryValueIsDocumented compares docs/install.md with the chart's values.
func TestEveryValueIsDocumented(t *testing.T) {
	page := test.Value(os.ReadFile("../../../../docs/install.md"))(t)
	text := test.Value(os.ReadFile("../../../../contrib/charts/berth/values.yaml"))(t)
	var values map[string]any
	test.Must(t, yaml.Unmarshal(text, &values))
	for name := range values {
		if !strings.Contains(string(page), "`"+name+"`") && !strings.Contains(string(page), "`"+name+".") {
			t.Errorf("docs/install.md does not have the value %s", name)
		}
	}
}
