// Package commandtest checks the commands of all programs in their tests.
package commandtest

import (
	"encoding/csv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Examples fails the test for commands without an example, and for examples that their command
// would refuse.
func Examples(t *testing.T, newRoot func() *cobra.Command) {
	t.Helper()
	for all := []*cobra.Command{newRoot()}; len(all) > 0; all = all[1:] {
		c := all[0]
		all = append(all, c.Commands()...)
		if c.Hidden {
			continue
		}
		typed := 0
		for line := range strings.Lines(c.Example) {
			if words := strings.TrimSpace(line); strings.HasPrefix(words, c.CommandPath()) {
				typed++
				if err := parse(newRoot(), words); err != nil {
					t.Errorf("%s: %v", words, err)
				}
			}
		}
		if typed == 0 {
			t.Errorf("%s has no example", c.CommandPath())
		}
	}
}

// parse checks a line up to a redirection or a pipe.
func parse(root *cobra.Command, line string) error {
	if end := strings.IndexAny(line, "<>|"); end > 0 {
		line = line[:end]
	}
	quoted := csv.NewReader(strings.NewReader(strings.TrimSpace(line)))
	quoted.Comma, quoted.LazyQuotes = ' ', true
	words, err := quoted.Read()
	if err != nil {
		return err
	}
	c, args, err := root.Find(words[len(strings.Fields(root.CommandPath())):])
	if err == nil {
		err = c.ParseFlags(args)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	return err
}
