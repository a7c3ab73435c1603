package nodelabel

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestHandler(t *testing.T) {
	if got := Handler("runc"); got != "feature.node.kubernetes.io/handler.runc" {
		t.Errorf("got %s", got)
	}
	seen := map[string]bool{}
	for _, name := range []string{
		"a", strings.Repeat("k", 55), strings.Repeat("k", 56), strings.Repeat("k", 63),
		strings.Repeat("k", 62) + "x", strings.Repeat("k", 44) + strings.Repeat("-", 18) + "k",
	} {
		label := Handler(name)
		if problems := validation.IsQualifiedName(label); len(problems) > 0 {
			t.Errorf("%s: %v", label, problems)
		}
		if seen[label] {
			t.Errorf("%s is the label of two handlers", label)
		}
		seen[label] = true
	}
}
