package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/configs"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/config"
)

// newConfigCommand makes "berth config".
func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print, check, compare and import configurations",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newConfigDefaultCommand(), newConfigShowCommand(), newCheckCommand(), newConfigDiffCommand(), newConfigImportCommand())
	return cmd
}

func newConfigDefaultCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "default",
		Short: "Print the default configuration with comments",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(configs.Berth)
			return err
		},
	}
}

func newConfigShowCommand() *cobra.Command {
	var options config.Options
	r := &remote{timeout: callTimeout}
	live := false
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the resulting configuration, and where each value comes from",
		Long: `Print the configuration that results from the files of this machine, with defaults
filled in, as one TOML file. The comment behind each key names its file and line.
The daemon is not asked: its running configuration may be older than the files.
Imported handlers that cannot be served are left out, with the reason in a comment, as
the daemon leaves them out.

With --live, print the daemon's running configuration; -o can then be json or yaml.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if live {
				return r.call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
					return showLive(ctx, r, c.OutOrStdout(), daemon)
				})(cmd, args)
			}
			if r.output != "table" {
				return misused(cmd, errors.New("-o needs --live"))
			}
			cfg, err := config.Load(options)
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), err)
				os.Exit(exitConfig)
			}
			return cfg.Show(cmd.OutOrStdout())
		},
	}
	placeFlags(cmd, &options)
	r.flags(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "print the daemon's running configuration")
	return cmd
}
