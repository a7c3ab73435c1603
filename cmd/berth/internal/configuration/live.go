package configuration

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func showLive(ctx context.Context, r *cli.Remote, w io.Writer, daemon *client.Client) error {
	resp, err := daemon.GetConfig(ctx, &adminv1.GetConfigRequest{})
	if err != nil {
		return err
	}
	// Dotted keys are TOML, so that this, too, is a file that berth would read.
	var lines []string
	for _, s := range resp.GetSettings() {
		lines = append(lines, fmt.Sprintf("%s = %s # %s", s.GetKey(), s.GetValue(), s.GetOrigin()))
	}
	return r.Print(w, resp, output.Lines(lines))
}

// newConfigDiffCommand makes "berth config diff".
func newConfigDiffCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	c := &cobra.Command{
		Use:   "diff",
		Short: "Diff configuration files against the running configuration",
		Long: `Compare the daemon's running configuration with the files on disk, as the daemon would
read them, key by key: "-" is only in the running configuration, "+" only in the files,
"~" has two values. Nothing is changed.

The exit status is 0 if they are equal, 3 if they differ, and 2 if the files are not
valid, with every error on stderr.`,
		Args: cobra.NoArgs,
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
				return commandline.Found("%s; apply the files by \"berth reload --wait\", which names keys that need a restart", output.Count(n, "key differs", "keys differ"))
			}
			return nil
		}),
	}
	r.Flags(c)
	return c
}

// keyDifference is a key that the files have otherwise than what is in force. The
// side that has not got it is empty.
type keyDifference struct {
	Key     string `json:"key"`
	InForce string `json:"inForce,omitempty"`
	Files   string `json:"files,omitempty"`
	// Origin is where the value of the files is from, or else the one in force.
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

// configDiff is in the order of the files. Pure.
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
