package handlers

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func handlerPromoteCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	c := &cobra.Command{
		Use:   "promote NAME",
		Short: "Complete a rollout: run all new pods on the candidate binary",
		Long: `Run all new pods of a handler on its candidate binary. This holds over restarts, until
the candidate is changed in the configuration or replaced on disk; the configuration
should by then name it as runtime_path. Existing pods keep their binary.`,
		Args: cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			resp, err := daemon.Promote(ctx, &adminv1.PromoteRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return tellRollout(r, c.OutOrStdout(), resp, resp.GetHandler())
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	return c
}

func handlerAbortCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	reason := ""
	c := &cobra.Command{
		Use:   "abort NAME",
		Short: "Abort a rollout: stop using the candidate binary",
		Long: `Abort the rollout of a handler's candidate binary: no new pods run on it, until the
candidate is changed in the configuration or replaced on disk. This also reverts "berth handler
promote", and holds over restarts. Existing pods keep their binary.`,
		Args: cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			resp, err := daemon.Abort(ctx, &adminv1.AbortRequest{Name: args[0], Reason: reason})
			if err != nil {
				return err
			}
			return tellRollout(r, c.OutOrStdout(), resp, resp.GetHandler())
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	c.Flags().StringVar(&reason, "reason", "", "reason, in one line")
	return c
}

func tellRollout(r *cli.Remote, w io.Writer, resp proto.Message, h *adminv1.Handler) error {
	return r.Print(w, resp, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "handler %s: %s\n", h.GetName(), rolloutLine(h.GetTrial()))
		return err
	})
}

// rolloutLine says how a rollout stands; empty without one.
func rolloutLine(t *adminv1.Trial) string {
	if t == nil {
		return ""
	}
	line := fmt.Sprintf("%s is %s", t.GetPath(), t.GetState())
	if t.GetState() == "running" {
		line = fmt.Sprintf("%s runs %d%% of new pods", t.GetPath(), t.GetPercent())
	}
	if t.GetReason() != "" {
		line += ": " + t.GetReason()
	}
	return line
}
