package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/berth-cri/berth/pkg/daemon"
)

// manCommand makes "berth man".
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write the manual pages of all commands into a directory",
		Long: `Write the manual pages of all commands, berth(8) and berth-<command>(8), into a
directory, which is made if it is missing. It is how packages get them.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := c.Root()
			noTags(root)
			return doc.GenManTree(root, &doc.GenManHeader{
				Section: "8", Source: fmt.Sprintf("berth %s", daemon.ThisBuild().Version), Manual: "berth",
			}, args[0])
		},
	}
}

// noTags leaves out the day of generation, so that equal sources make equal pages.
func noTags(c *cobra.Command) {
	c.DisableAutoGenTag = true
	for _, below := range c.Commands() {
		noTags(below)
	}
}
