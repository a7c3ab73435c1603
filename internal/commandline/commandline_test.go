package commandline

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/internal/test"
)

// Flags that exclude each other or are missing are reported like other mistakes of a command line.
func TestFlagsTogether(t *testing.T) {
	for line, says := range map[string]string{
		"list":                   `--to is needed; see "x list --help"`,
		"list --to a --a --b":    `use only one of --a, --b; see "x list --help"`,
		"list --to a --a":        "",
		"list --to a more":       `"x list" takes no arguments, got "more"; see "x list --help"`,
		"list --to":              `flag needs an argument: --to; see "x list --help"`,
		"either":                 `--a or --b is needed; see "x either --help"`,
		"any --help":             "",
		"any one two three four": "",
	} {
		root := &cobra.Command{Use: "x", SilenceErrors: true, SilenceUsage: true}
		list := &cobra.Command{Use: "list", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }}
		list.Flags().Bool("a", false, "")
		list.Flags().Bool("b", false, "")
		list.Flags().String("to", "", "")
		list.MarkFlagsMutuallyExclusive("a", "b")
		test.Must(t, list.MarkFlagRequired("to"))
		either := &cobra.Command{Use: "either", RunE: func(*cobra.Command, []string) error { return nil }}
		either.Flags().Bool("a", false, "")
		either.Flags().Bool("b", false, "")
		either.MarkFlagsOneRequired("a", "b")
		root.AddCommand(list, either, &cobra.Command{Use: "any", RunE: func(*cobra.Command, []string) error { return nil }})
		root.SetOut(&strings.Builder{})
		Check(root)
		root.SetArgs(strings.Fields(line))
		err := root.Execute()
		if (err == nil) != (says == "") || err != nil && (err.Error() != says || Status(err) != 2) {
			t.Errorf("%s: got %v, want %q", line, err, says)
		}
	}
}
