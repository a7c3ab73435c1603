// Package node has the commands that show the daemon, its pods, and the problems of the node.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/internal/screen"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// StatusCommand returns the command "berth status".
func StatusCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	watch, every := false, defaultEvery
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the status of the daemon, and what to correct",
		Long: `Show the status of the running daemon, and each reason why the daemon is degraded. The
exit status is 3 if the daemon is degraded, 1 if it does not respond, and otherwise 0. A
cordoned handler does not make the daemon degraded.

With --watch, keep the status on the whole terminal until q is pressed. It shows the
handlers, the pods, the starts of pods per minute, and how long each part of a start
takes (p95). If berth stops responding, the last data stays on screen. If the output is
a pipe or a file, it is plain text.`,
		Example: "  berth status\n  berth status --watch\n  berth status --watch --every 10s >> status.log",
		Args:    cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if watch {
			switch {
			case c.Flags().Changed("output"):
				return commandline.Misused(c, errors.New("--watch has no -o; use \"berth handlers --watch -o json\""))
			case every < watchEvery:
				return commandline.Misused(c, fmt.Errorf("--every is less than %s", watchEvery))
			}
			r.Timeout = 0
			return r.With(c, func(ctx context.Context, daemon *client.Client) error {
				source := nodeSource(daemon, every)
				if screen.Terminal(c.InOrStdin(), c.OutOrStdout()) {
					return source.Show(ctx, c.InOrStdin(), c.OutOrStdout())
				}
				return source.Print(ctx, c.OutOrStdout())
			})
		}
		if c.Flags().Changed("every") {
			return commandline.Misused(c, errors.New("--every needs --watch"))
		}
		return r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			resp, err := daemon.GetStatus(ctx, &adminv1.GetStatusRequest{})
			if err != nil {
				return err
			}
			if err := r.Print(c.OutOrStdout(), resp, func(w io.Writer) error { return showStatus(w, resp) }); err != nil {
				return err
			}
			if n := len(resp.GetDegraded()); n > 0 {
				return commandline.Found("berth is degraded, for %s", output.Count(n, "reason", "reasons"))
			}
			return nil
		})(c, args)
	}
	r.Flags(c)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "keep the status on screen, with the last starts of pods")
	c.Flags().DurationVar(&every, "every", defaultEvery, "with --watch: the `interval` between updates")
	return c
}

func showStatus(w io.Writer, s *adminv1.GetStatusResponse) error {
	revision := ""
	if s.GetRevision() != "" {
		revision = " (" + s.GetRevision() + ")"
	}
	fmt.Fprintf(w, "berth %s%s, up %s\n", s.GetVersion(), revision, cli.Age(time.Since(s.GetStartedAt().AsTime())))
	fmt.Fprintf(w, "serves %s\n", s.GetCriSocket())
	fmt.Fprintf(w, "generation %d (%s), read %s\n", s.GetGeneration(), cli.Short(s.GetDigest()), cli.Ago(s.GetReloadedAt().AsTime()))
	fmt.Fprintf(w, "%d of %d handlers accept pods, %s\n", s.GetHandlersReady(), s.GetHandlers(), output.Pods(s.GetPods()))
	for _, h := range s.GetNotAccepting() {
		fmt.Fprintln(w, notAccepting(h))
	}
	for _, line := range s.GetDegraded() {
		fmt.Fprintf(w, "degraded: %s\n", line)
	}
	for _, p := range s.GetProblems() {
		fmt.Fprintf(w, "problem: %s\n", client.Line(p))
	}
	for _, line := range s.GetNeedsRestart() {
		fmt.Fprintf(w, "needs a restart: %s\n", line)
	}
	return nil
}

// notAccepting returns the line of a handler that accepts no pods. The reason of a handler that is
// not ready is in the degraded lines. Pure except for the time.
func notAccepting(h *adminv1.Handler) string {
	line := fmt.Sprintf("  %s is %s for %s", h.GetName(), cli.StateWord(h.GetState()), cli.Age(time.Since(h.GetStateSince().AsTime())))
	if h.GetStateBy() != "" {
		line += ", by " + h.GetStateBy()
	}
	if h.GetState() == adminv1.State_STATE_NOT_READY {
		return line
	}
	return line + ": " + h.GetReason()
}
