// Package manual generates the manual pages of commands.
package manual

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Command returns the command "man". The pages depend only on the commands of its root.
func Command(section, source string) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write the manual pages of all commands into a directory",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			noTags(c.Root())
			return doc.GenManTree(c.Root(), &doc.GenManHeader{Section: section, Source: source, Manual: "berth"}, args[0])
		},
	}
}

// noTags omits the date of generation from the pages.
func noTags(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, below := range c.Commands() {
		noTags(below)
	}
}
