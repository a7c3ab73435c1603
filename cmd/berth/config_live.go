package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// showLive prints what the daemon has in force.
func showLive(ctx context.Context, r *remote, w io.Writer, daemon *client.Client) error {
	resp, err := daemon.GetConfig(ctx, &adminv1.GetConfigRequest{})
	if err != nil {
		return err
	}
	return r.print(w, resp, func(w io.Writer) error {
		// Dotted keys are TOML, so that this, too, is a file that berth would read.
		for _, s := range resp.GetSettings() {
			if _, err := fmt.Fprintf(w, "%s = %s # %s\n", s.GetKey(), s.GetValue(), s.GetOrigin()); err != nil {
				return err
			}
		}
		return nil
	})
}

// newConfigDiffCommand makes "berth config diff".
func newConfigDiffCommand() *cobra.Command {
	r := &remote{timeout: callTimeout}
	c := &cobra.Command{
		Use:   "diff",
		Short: "Show what the files say otherwise than what the daemon has in force",
		Long: `Compare the configuration that the daemon has in force with the files on disk, as the
daemon itself would read them, key by key: "-" is in force only, "+" is in the files
only, "~" has two values. Nothing is changed.

The exit status is 0 if they say the same, 3 if they differ, and 2 with every mistake
on stderr if the files would be refused.`,
		Args: cobra.NoArgs,
		RunE: r.call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			live, err := daemon.GetConfig(ctx, &adminv1.GetConfigRequest{})
			if err != nil {
				return err
			}
			files, err := daemon.GetConfig(ctx, &adminv1.GetConfigRequest{Files: true})
			if err != nil {
				return err
			}
			lines := configDiff(live.GetSettings(), files.GetSettings())
			for _, line := range lines {
				fmt.Fprintln(c.OutOrStdout(), line)
			}
			if len(lines) > 0 {
				return degraded("%d keys differ; \"berth reload --wait\" puts the files in force", len(lines))
			}
			return nil
		}),
	}
	r.flags(c)
	return c
}

// configDiff is a line for each key that differs, in the order of the files. Pure.
func configDiff(live, files []*adminv1.Setting) []string {
	inForce := map[string]*adminv1.Setting{}
	for _, s := range live {
		inForce[s.GetKey()] = s
	}
	var lines []string
	inFiles := map[string]bool{}
	for _, s := range files {
		inFiles[s.GetKey()] = true
		switch was := inForce[s.GetKey()]; {
		case was == nil:
			lines = append(lines, fmt.Sprintf("+ %s = %s # %s", s.GetKey(), s.GetValue(), s.GetOrigin()))
		case was.GetValue() != s.GetValue():
			lines = append(lines, fmt.Sprintf("~ %s = %s # in force: %s; %s", s.GetKey(), s.GetValue(), was.GetValue(), s.GetOrigin()))
		}
	}
	for _, s := range live {
		if !inFiles[s.GetKey()] {
			lines = append(lines, fmt.Sprintf("- %s = %s # in force, from %s", s.GetKey(), s.GetValue(), s.GetOrigin()))
		}
	}
	return lines
}
