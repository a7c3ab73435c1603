// Package configuration has the commands that check, print, compare, import and apply
// configurations.
package configuration

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/configs"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/config"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// ConfigCommand returns the command "berth config".
func ConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Show, compare and import configurations",
		Example: "  berth config show\n  berth config diff\n  berth config default > config.toml",
		Args:    cobra.NoArgs,
	}
	cmd.AddCommand(newConfigDefaultCommand(), newConfigShowCommand(), newConfigDiffCommand(), newConfigImportCommand())
	return cmd
}

func newConfigDefaultCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "default",
		Short:   "Print the default configuration with comments",
		Example: "  berth config default > config.toml",
		Args:    cobra.NoArgs,
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
		Short: "Show the configuration of the files, and the source of each value",
		Long: `Print the configuration in this machine's files, with defaults, as one TOML file.
Comments name the source of each key. Imported handlers that cannot be served are left
out; a comment has the reason. The daemon may still run an older configuration.

With --live, print the configuration that the daemon runs. Only then can -o be json or
yaml.`,
		Example: "  berth config show\n  berth config show --live -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if live {
				return r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
					return showLive(ctx, r, c.OutOrStdout(), daemon)
				})(cmd, args)
			}
			if r.Output == "json" || r.Output == "yaml" {
				return commandline.Misused(cmd, fmt.Errorf("-o %s needs --live", r.Output))
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

func showLive(ctx context.Context, r *cli.Remote, w io.Writer, daemon *client.Client) error {
	resp, err := daemon.GetConfig(ctx, &adminv1.GetConfigRequest{})
	if err != nil {
		return err
	}
	// Dotted keys are TOML: berth could read this output as a file.
	var lines []string
	for _, s := range resp.GetSettings() {
		lines = append(lines, fmt.Sprintf("%s = %s # %s", s.GetKey(), s.GetValue(), s.GetOrigin()))
	}
	return r.Print(w, resp, output.Lines(lines))
}

func newConfigDiffCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	c := &cobra.Command{
		Use:   "diff",
		Short: "Compare the files with the running configuration",
		Long: `Compare the daemon's running configuration with the configuration files, key by key.
Nothing is changed.

A key with "-" is only in the running configuration. A key with "+" is only in the
files. A key with "~" has another value in the files.

The exit status is 0 if no key differs, and 3 if keys differ. It is 2 if the files have
mistakes; stderr has each mistake.`,
		Example: "  berth config diff",
		Args:    cobra.NoArgs,
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			live, err := daemon.GetConfig(ctx, &adminv1.GetConfigRequest{})
			if err != nil {
				return err
			}
			files, err := daemon.GetConfig(ctx, &adminv1.GetConfigRequest{Files: true})
			if err != nil {
				return err
			}
			differences := configDiff(live.GetSettings(), files.GetSettings())
			var lines []string
			for _, d := range differences {
				lines = append(lines, d.String())
			}
			if err := output.Encode(c.OutOrStdout(), r.Output, map[string]any{"differences": differences}, output.Lines(lines)); err != nil {
				return err
			}
			if n := len(differences); n > 0 {
				return commandline.Found("%s; apply the files with \"berth reload --wait\", which names keys that need a restart", output.Count(n, "key differs", "keys differ"))
			}
			return nil
		}),
	}
	r.Flags(c)
	return c
}

// keyDifference is a key with different values in the files and in the running daemon. The side
// without the key is empty.
type keyDifference struct {
	Key     string `json:"key"`
	InForce string `json:"inForce,omitempty"`
	Files   string `json:"files,omitempty"`
	// Origin is the origin of the files' value, or else of the running one.
	Origin string `json:"origin"`
}

func (d keyDifference) String() string {
	switch {
	case d.InForce == "":
		return fmt.Sprintf("+ %s = %s # %s", d.Key, d.Files, d.Origin)
	case d.Files == "":
		return fmt.Sprintf("- %s = %s # running, from %s", d.Key, d.InForce, d.Origin)
	}
	return fmt.Sprintf("~ %s = %s # running: %s; %s", d.Key, d.Files, d.InForce, d.Origin)
}

// configDiff returns the differences in the order of the files. Pure.
func configDiff(live, files []*adminv1.Setting) []keyDifference {
	inForce := map[string]*adminv1.Setting{}
	for _, s := range live {
		inForce[s.GetKey()] = s
	}
	all := []keyDifference{}
	inFiles := map[string]bool{}
	for _, s := range files {
		inFiles[s.GetKey()] = true
		if was := inForce[s.GetKey()].GetValue(); was != s.GetValue() {
			all = append(all, keyDifference{s.GetKey(), was, s.GetValue(), s.GetOrigin()})
		}
	}
	for _, s := range live {
		if !inFiles[s.GetKey()] {
			all = append(all, keyDifference{s.GetKey(), s.GetValue(), "", s.GetOrigin()})
		}
	}
	return all
}

func newConfigImportCommand() *cobra.Command {
	var options config.Options
	form := ""
	cmd := &cobra.Command{
		Use:   "import FILE|DIRECTORY...",
		Short: "Translate handlers of CRI-O and containerd into a drop-in",
		Long: `Translate the handlers in CRI-O or containerd files, or in directories of them, into
a berth drop-in on stdout. Every key without an equivalent is reported on stderr,
with the reason and what to do. To serve such files directly and follow their changes,
list them in [import] instead.

The exit status is 2 if a file cannot be read or has a mistake, and 3 if this machine
lacks what a handler needs, such as its binary; the drop-in still has all handlers.`,
		Example: "  berth config import /etc/crio/crio.conf.d > /etc/berth/conf.d/50-crio.toml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return importFiles(args, options, form, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.SearchFlag(cmd, &options, "directories to search for runtimes that are named without a path")
	output.Flag(cmd, &form, output.Forms...)
	return cmd
}

func importFiles(paths []string, o config.Options, form string, stdout, stderr io.Writer) error {
	for i, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return commandline.Wrong(fmt.Errorf("%w; give files or directories of CRI-O or containerd", err))
		}
		absolute, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		paths[i] = absolute
	}
	t, err := config.Translate(paths, o)
	if err != nil {
		return err
	}
	found := foundIn(&config.Config{ImportNotes: t.Notes}, nil, t.Problems, nil, "")
	answer := map[string]any{"dropIn": string(t.DropIn), "notes": found.Notes, "problems": found.Problems}
	if err := output.Encode(stdout, form, answer, func(w io.Writer) error {
		_, err := w.Write(t.DropIn)
		return err
	}); err != nil {
		return err
	}
	if err := output.Lines(noteLines(t.Notes))(stderr); err != nil {
		return err
	}
	switch mistakes, lacks := t.Problems.Split(); {
	case len(lacks) > 0 && len(mistakes) == 0:
		return commandline.Found("some handlers cannot be served on this machine:\n%w", lacks)
	case len(t.Problems) > 0:
		return commandline.Wrong(fmt.Errorf("some handlers cannot be served:\n%w", t.Problems))
	}
	return nil
}
