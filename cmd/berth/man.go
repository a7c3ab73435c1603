package main

import (
	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/internal/manual"
	"github.com/berth-cri/berth/pkg/daemon"
)

// manCommand makes "berth man".
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man DIR",
		Short: "Write the manual pages of all commands into a directory",
		Long: `Write the manual pages of all commands, berth(8) and berth-<command>(8), into a
directory, which is created if it is missing. Packages are built with it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return manual.Write(c.Root(), args[0], "8", "berth "+daemon.ThisBuild().Version)
		},
	}
}
