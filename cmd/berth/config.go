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
	r := &remote{timeout: callTimeout}
	live := false
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the configuration that the files amount to, and where each value is from",
		Long: `Print the configuration that the files of this machine amount to, with defaults
filled in, as one TOML file. A comment behind each key says which file and line it
is from. No daemon is asked: what it runs may be older than the files. As the
daemon would, it leaves out handlers that cannot be served, and says why in a comment.

With --live the daemon is asked what it has in force, and -o can be json or yaml.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if live {
				return r.call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
					return showLive(ctx, r, c.OutOrStdout(), daemon)
				})(cmd, args)
			}
			if r.output != "table" {
				return misused(cmd, errors.New("-o is for --live"))
			}
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
	r.flags(cmd)
	cmd.Flags().BoolVar(&live, "live", false, "ask the daemon what it has in force")
	return cmd
}
