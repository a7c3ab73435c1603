package configuration

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// ReloadCommand returns the command "berth reload".
func ReloadCommand() *cobra.Command {
	r := &cli.Remote{}
	wait := false
	c := &cobra.Command{
		Use:   "reload",
		Short: "Read, check and apply the configuration files again",
		Long: `Make the daemon read and check its configuration files again, probe new runtimes, and
then apply the files. If a file has a mistake, no file is applied. In imported files,
only the part with the mistake is left out. Some keys take effect only after a restart.
Pods are not affected.

With --wait, the exit status is 0 if the configuration is applied. It is 2 if the
configuration is rejected; stderr has each mistake as file:line:column. It is 3 if the
configuration is applied, but a handler cannot run pods or a part of an imported file is
left out. If the daemon has already reloaded the files by itself, the result of that
reload is shown. Without --wait, the command returns at once.`,
		Example: "  berth reload --wait",
		Args:    cobra.NoArgs,
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			if !wait {
				resp, err := daemon.Reload(ctx, &adminv1.ReloadRequest{NoWait: true})
				if err != nil {
					return err
				}
				return showRequest(c.OutOrStdout(), r.Output, resp)
			}
			return reload(ctx, c, r, daemon)
		}),
	}
	r.Flags(c)
	c.Flags().BoolVar(&wait, "wait", false, "wait for the result")
	c.Flags().DurationVar(&r.Timeout, "timeout", 2*time.Minute, "how long to wait")
	return c
}

func reload(ctx context.Context, c *cobra.Command, r *cli.Remote, daemon *client.Client) error {
	p := cli.NewProgress(c.ErrOrStderr())
	if output.Width(c.ErrOrStderr()) > 0 {
		p.Step("reading, checking and probing …")
	}
	resp, err := daemon.Reload(ctx, &adminv1.ReloadRequest{})
	p.End()
	if err != nil {
		return err
	}
	if err := r.Print(c.OutOrStdout(), resp, output.Lines(reloadLines(resp))); err != nil {
		return err
	}
	for _, problem := range resp.GetProblems() {
		fmt.Fprintln(c.ErrOrStderr(), client.Line(problem))
	}
	return reloadEnd(resp)
}

// reloadEnd returns the error that ends a reload with --wait. It depends on the state after the
// reload, not on the reload's changes. Pure.
func reloadEnd(resp *adminv1.ReloadResponse) error {
	if !resp.GetAccepted() {
		return commandline.Wrong(fmt.Errorf("the configuration was rejected, generation %d stays in use; correct it and reload again", resp.GetGeneration()))
	}
	if names := resp.GetNotReady(); len(names) > 0 {
		return commandline.Found("the configuration was applied, but these handlers cannot run pods: %s; see \"berth handlers\"", strings.Join(names, ", "))
	}
	if n := len(resp.GetProblems()); n > 0 {
		return commandline.Found("the configuration was applied without the parts that have problems: %s", output.Count(n, "problem", "problems"))
	}
	return nil
}

// requested is the output of a reload without --wait. The daemon's answer has more fields, which
// would look like a result.
type requested struct {
	Requested  bool   `json:"requested"`
	Generation uint64 `json:"generation,string"`
	Digest     string `json:"digest"`
}

func showRequest(w io.Writer, form string, resp *adminv1.ReloadResponse) error {
	return output.Encode(w, form, requested{true, resp.GetGeneration(), resp.GetDigest()},
		output.Line("generation %d stays in use until the files are read; see \"berth status\"", resp.GetGeneration()))
}

func reloadLines(resp *adminv1.ReloadResponse) []string {
	if !resp.GetAccepted() {
		return nil
	}
	lines := slices.Clone(resp.GetChanges())
	for _, line := range resp.GetNeedsRestart() {
		lines = append(lines, line+": applied after systemctl restart berth")
	}
	return append(lines, fmt.Sprintf("generation %d applied (%s)", resp.GetGeneration(), resp.GetTook().AsDuration().Round(time.Millisecond)))
}
