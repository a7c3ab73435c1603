package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/internal/test/commandtest"
)

func TestExamples(t *testing.T) {
	commandtest.Examples(t, func() *cobra.Command { return newRoot(genericiooptions.NewTestIOStreamsDiscard()) })
}

// Every command has a section in docs/kubectl-berth.md, which names all flags of the command.
func TestEveryCommandIsDocumented(t *testing.T) {
	text := test.Value(os.ReadFile("../../../../docs/kubectl-berth.md"))(t)
	for _, c := range newRoot(genericiooptions.NewTestIOStreamsDiscard()).Commands() {
		if c.Hidden {
			continue
		}
		_, part, ok := strings.Cut(string(text), "\n## "+c.Name()+"\n")
		part, _, _ = strings.Cut(part, "\n## ")
		if !ok || c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: the page has no section for it, or its short help %q is missing or has a full stop", c.Name(), c.Short)
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(part, "--"+f.Name) && (f.Shorthand == "" || !strings.Contains(part, "`-"+f.Shorthand)) && f.Name != "help" {
				t.Errorf("%s: the section does not name --%s", c.Name(), f.Name)
			}
		})
	}
}
