package main

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/internal/test"
)

// System namespaces are exempt unless an empty --exempt clears the defaults.
func TestExempt(t *testing.T) {
	classes, known := file(t, "classes.yaml", oneClass), file(t, "handlers.yaml", handlers)
	system := []string{"berth-system", "kube-system", "node-feature-discovery"}
	for name, c := range map[string]struct{ flags, want []string }{
		"default":        {nil, system},
		"one more":       {[]string{"--exempt", "mine"}, append(slices.Clone(system), "mine")},
		"several":        {[]string{"--exempt", "mine,yours", "--exempt=theirs"}, append(slices.Clone(system), "mine", "theirs", "yours")},
		"one twice":      {[]string{"--exempt", "kube-system"}, system},
		"none":           {[]string{"--exempt", ""}, nil},
		"only a new one": {[]string{"--exempt=", "--exempt", "mine"}, []string{"mine"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := ran(t, append([]string{"policy", "--classes", classes, "--handlers", known}, c.flags...)...)
			if code != 0 {
				t.Fatalf("exit status %d: %s", code, stderr)
			}
			var p admissionv1.ValidatingAdmissionPolicy
			first, _, _ := strings.Cut(stdout, "\n---\n")
			test.Must(t, yaml.Unmarshal([]byte(first), &p))
			var got []string
			if s := p.Spec.MatchConstraints.NamespaceSelector; s != nil {
				got = s.MatchExpressions[0].Values
			}
			slices.Sort(got)
			want := slices.Sorted(slices.Values(c.want))
			test.EqualLists(t, "the exempt namespaces", got, want)
		})
	}
}
