// Package manual makes manual pages of trees of commands.
package manual

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Write writes the pages of a tree into a directory, which is made if it is missing.
// Equal sources make equal pages.
func Write(root *cobra.Command, dir, section, source string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	noTags(root)
	return doc.GenManTree(root, &doc.GenManHeader{Section: section, Source: source, Manual: "berth"}, dir)
}

// noTags leaves out the day of generation.
func noTags(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, below := range c.Commands() {
		noTags(below)
	}
}
