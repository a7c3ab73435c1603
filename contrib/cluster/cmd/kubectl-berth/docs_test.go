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

// Every command has its part of docs/kubectl-berth.md, and every flag of its own is named there.
func TestEveryCommandIsDocumented(t *testing.T) {
	text := test.Value(os.ReadFile("../../../../docs/kubectl-berth.md"))(t)
	for _, c := range newRoot(genericiooptions.NewTestIOStreamsDiscard()).Commands() {
		if c.Hidden {
			continue
		}
		_, part, ok := strings.Cut(string(text), "\n## "+c.Name()+"\n")
		part, _, _ = strings.Cut(part, "\n## ")
		if !ok || c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: has no part, or is described by %q", c.Name(), c.Short)
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if !strings.Contains(part, "--"+f.Name) && (f.Shorthand == "" || !strings.Contains(part, "`-"+f.Shorthand)) && f.Name != "help" {
				t.Errorf("%s: --%s is not there", c.Name(), f.Name)
			}
		})
	}
}
