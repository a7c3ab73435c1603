package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-cri/berth/internal/test"
)

// Every command has its part of docs/kubectl-berth.md and an example, and every flag of
// its own is named there.
func TestEveryCommandIsDocumented(t *testing.T) {
	text := test.Value(os.ReadFile("../../../../docs/kubectl-berth.md"))(t)
	for _, c := range newRoot(genericiooptions.NewTestIOStreamsDiscard()).Commands() {
		if c.Hidden {
			continue
		}
		_, part, ok := strings.Cut(string(text), "\n## "+c.Name()+"\n")
		part, _, _ = strings.Cut(part, "\n## ")
		if !ok || c.Short == "" || strings.HasSuffix(c.Short, ".") || !strings.Contains(c.Example, "kubectl berth "+c.Name()) {
			t.Errorf("%s: has no part, or is described by %q, with %q", c.Name(), c.Short, c.Example)
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(part, "--"+f.Name) && (f.Shorthand == "" || !strings.Contains(part, "`-"+f.Shorthand)) && f.Name != "help" {
				t.Errorf("%s: --%s is not there", c.Name(), f.Name)
			}
		})
	}
}
