package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/configs"
	"github.com/berth-cri/berth/pkg/config"
)

// newConfigCommand makes "berth config".
func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print a configuration",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newConfigDefaultCommand(), newConfigShowCommand(), newConfigImportCommand())
	return cmd
}

func newConfigDefaultCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "default",
		Short: "Print the commented configuration that berth ships",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(configs.Berth)
			return err
		},
	}
}

func newConfigShowCommand() *cobra.Command {
	var options config.Options
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the configuration that the files amount to, and where each value is from",
		Long: `Print the configuration that the files of this machine amount to, with defaults
filled in, as one TOML file. A comment behind each key says which file and line it
is from. No daemon is asked: what it runs may be older than the files. As the
daemon would, it leaves out handlers that cannot be served, and says why in a comment.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options.TolerateDropIns = true
			cfg, err := config.Load(options)
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), err)
				os.Exit(exitConfig)
			}
			return cfg.Show(cmd.OutOrStdout())
		},
	}
	placeFlags(cmd, &options)
	return cmd
}
