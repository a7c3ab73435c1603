package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// statusCommand makes "berth status".
func statusCommand() *cobra.Command {
	r := &remote{timeout: callTimeout}
	c := &cobra.Command{
		Use:   "status",
		Short: "Show how the running daemon is, and everything that is wrong",
		Long: `Show how the running daemon is. The exit status is 0 if all is well, 3 if berth is
degraded, with each reason, and 1 if it does not answer. A handler that an operator
has cordoned is not a reason.`,
		Args: cobra.NoArgs,
		RunE: r.call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			resp, err := daemon.GetStatus(ctx, &adminv1.GetStatusRequest{})
			if err != nil {
				return err
			}
			if err := r.print(c.OutOrStdout(), resp, func(w io.Writer) error { return showStatus(w, resp) }); err != nil {
				return err
			}
			if n := len(resp.GetDegraded()); n > 0 {
				return degraded("berth is degraded: %d of its parts need attention", n)
			}
			return nil
		}),
	}
	r.flags(c)
	return c
}

func showStatus(w io.Writer, s *adminv1.GetStatusResponse) error {
	revision := ""
	if s.GetRevision() != "" {
		revision = " (" + s.GetRevision() + ")"
	}
	fmt.Fprintf(w, "berth %s%s, up %s\n", s.GetVersion(), revision, age(time.Since(s.GetStartedAt().AsTime())))
	fmt.Fprintf(w, "serves %s\n", s.GetCriSocket())
	fmt.Fprintf(w, "generation %d (%s), read %s\n", s.GetGeneration(), short(s.GetDigest()), ago(s.GetReloadedAt().AsTime()))
	fmt.Fprintf(w, "%d of %d handlers take pods, %s\n", s.GetHandlersReady(), s.GetHandlers(), output.Pods(s.GetPods()))
	for _, line := range s.GetDegraded() {
		fmt.Fprintf(w, "degraded: %s\n", line)
	}
	for _, p := range s.GetProblems() {
		fmt.Fprintf(w, "problem: %s\n", client.Line(p))
	}
	for _, line := range s.GetNeedsRestart() {
		fmt.Fprintf(w, "waits for a restart: %s\n", line)
	}
	return nil
}
