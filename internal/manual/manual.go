// Package manual generates the manual pages of commands.
package manual

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Write writes the pages of a tree of commands into a directory, and creates it if it is missing.
// The pages depend only on the commands.
func Write(root *cobra.Command, dir, section, source string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	noTags(root)
	return doc.GenManTree(root, &doc.GenManHeader{Section: section, Source: source, Manual: "berth"}, dir)
}

// noTags omits the date of generation.
func noTags(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, below := range c.Commands() {
		noTags(below)
	}
}
