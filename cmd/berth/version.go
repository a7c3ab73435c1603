package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/daemon"
)

func versionCommand() *cobra.Command {
	var asJSON bool
	form := ""
	c := &cobra.Command{
		Use:   "version",
		Short: "Print version information",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON {
				form = "json"
			}
			b := daemon.ThisBuild()
			return encode(c.OutOrStdout(), form, b, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "berth version %s\n", versionText(b))
				return err
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "the same as -o json")
	outputFlag(c, &form)
	return c
}

func versionText(b daemon.Build) string {
	revision := ""
	if b.Revision != "" {
		revision = " (" + b.Revision + ")"
	}
	return fmt.Sprintf("%s%s, CRI %s, %s %s", b.Version, revision, b.CRI, b.Go, b.Platform)
}
