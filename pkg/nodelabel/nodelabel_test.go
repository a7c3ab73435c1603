package nodelabel

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-cri/berth/internal/test"
)

func TestNames(t *testing.T) {
	test.Equal(t, "Handler", Handler("runc"), "feature.node.kubernetes.io/handler.runc")
	test.Equal(t, "About", About("runc", "isolation"), "feature.node.kubernetes.io/handler.runc.isolation")
	abouts := []string{isolation, state, "present", "default", "max-pods", pods}
	for _, name := range labelled {
		abouts = append(abouts, string(name))
	}
	seen := map[string]bool{}
	for _, name := range []string{
		"a", strings.Repeat("k", 27), strings.Repeat("k", 28), strings.Repeat("k", 29), strings.Repeat("k", 55), strings.Repeat("k", 56), strings.Repeat("k", 63),
		strings.Repeat("k", 62) + "x", strings.Repeat("k", 44) + strings.Repeat("-", 18) + "k", strings.Repeat("k", 18) + strings.Repeat("-", 40) + "k",
	} {
		labels := []string{Handler(name)}
		for _, what := range abouts {
			labels = append(labels, About(name, what))
		}
		for _, label := range labels {
			if problems := validation.IsQualifiedName(label); len(problems) > 0 {
				t.Errorf("%s: %v", label, problems)
			}
			if seen[label] {
				t.Errorf("%s has two meanings", label)
			}
			seen[label] = true
		}
	}
}

func TestIsPods(t *testing.T) {
	for resource, want := range map[string]bool{
		Pods("kata"): true, Pods(strings.Repeat("k", 63)): true,
		Present("kata"): false, Handler("pods"): false, "cpu": false, "example.com/handler.kata.pods": false, Prefix + "kata-pods": false,
	} {
		test.Equal(t, fmt.Sprint(resource), IsPods(resource), want)
	}
}

// A label belongs to one handler, also if names are long or one begins with another.
func TestIsAbout(t *testing.T) {
	long := strings.Repeat("k", 63)
	for _, c := range []struct {
		key, handler string
		want         bool
	}{
		{Handler("kata"), "kata", true},
		{MaxPods("kata"), "kata", true},
		{About("kata", "user-namespaces"), "kata", true},
		{Handler(long), long, true},
		{MaxPods(long), long, true},
		{Handler("kata"), "kata-qemu", false},
		{MaxPods("kata-qemu"), "kata", false},
		{"kubernetes.io/kata", "kata", false},
		{"kata", "kata", false},
		{"", "kata", false},
	} {
		test.Equal(t, fmt.Sprintf("%q is about %s", c.key, c.handler), IsAbout(c.key, c.handler), c.want)
	}
}
