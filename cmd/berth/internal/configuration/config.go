// Package configuration has the commands that check, print, compare, import and apply
// configurations.
package configuration

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/configs"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/config"
)

// ConfigCommand makes "berth config".
func ConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print, check, compare and import configurations",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newConfigDefaultCommand(), newConfigShowCommand(), CheckCommand(), newConfigDiffCommand(), newConfigImportCommand())
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
	r := &cli.Remote{Timeout: cli.CallTimeout}
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
				return r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
					return showLive(ctx, r, c.OutOrStdout(), daemon)
				})(cmd, args)
			}
			if r.Output != "table" {
				return commandline.Misused(cmd, errors.New("-o needs --live"))
			}
			cfg, err := config.Load(options)
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), err)
				return commandline.Shown(commandline.Mistaken)
			}
			return cfg.Show(cmd.OutOrStdout())
		},
	}
	cli.PlaceFlags(cmd, &options)
	r.Flags(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "print the daemon's running configuration")
	return cmd
}
