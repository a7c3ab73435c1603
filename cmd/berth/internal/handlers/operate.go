package handlers

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func handlerCordonCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	reason := ""
	c := &cobra.Command{
		Use:   "cordon NAME",
		Short: "Stop accepting new pods under a handler",
		Long: `Reject new pods of a handler with Unavailable and the reason, until it is uncordoned.
Existing pods are not affected. A cordon survives restarts of the daemon.`,
		Args: cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			resp, err := daemon.Cordon(ctx, &adminv1.CordonRequest{Name: args[0], Reason: reason})
			if err != nil {
				return err
			}
			return stateLine(r, c.OutOrStdout(), resp, resp.GetHandler())
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	c.Flags().StringVar(&reason, "reason", "", "reason, in one line; shown in the error of rejected pods")
	return c
}

func handlerUncordonCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	c := &cobra.Command{
		Use:   "uncordon NAME",
		Short: "Accept new pods again after a cordon or drain",
		Args:  cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			resp, err := daemon.Uncordon(ctx, &adminv1.UncordonRequest{Name: args[0]})
			if err != nil {
				return err
			}
			return stateLine(r, c.OutOrStdout(), resp, resp.GetHandler())
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	return c
}

func stateLine(r *cli.Remote, w io.Writer, resp proto.Message, h *adminv1.Handler) error {
	line := fmt.Sprintf("handler %s is %s", h.GetName(), cli.StateWord(h.GetState()))
	if h.GetReason() != "" {
		line += ": " + h.GetReason()
	} else if h.GetRuntimeVersion() != "" {
		line += ": " + cli.RuntimeOf(h)
	}
	return r.Print(w, resp, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, line)
		return err
	})
}

func handlerDrainCommand() *cobra.Command {
	r := &cli.Remote{}
	reason := ""
	c := &cobra.Command{
		Use:   "drain NAME",
		Short: "Cordon a handler, and wait until its last pod is gone",
		Long: `Cordon a handler and wait until it has no pods. berth does not stop any pods: evict
them, by "kubectl drain" or a rollout of the workload. An interrupt or --timeout ends
only the wait; the handler accepts no new pods until "berth handler uncordon".`,
		Args: cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			return drain(ctx, r, c, daemon, &adminv1.DrainRequest{Name: args[0], Reason: reason})
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	c.Flags().StringVar(&reason, "reason", "", "reason, in one line; shown in the error of rejected pods")
	c.Flags().DurationVar(&r.Timeout, "timeout", 0, "how long to wait; 0 waits until it has no pods")
	return c
}

func drain(ctx context.Context, r *cli.Remote, c *cobra.Command, daemon *client.Client, req *adminv1.DrainRequest) error {
	stream, err := daemon.Drain(ctx, req)
	if err != nil {
		return err
	}
	p := cli.NewProgress(c.ErrOrStderr())
	var last *adminv1.DrainResponse
	for left := int32(-1); left != 0; {
		resp, err := stream.Recv()
		if err != nil {
			p.End()
			if left > 0 && gaveUp(ctx, err) {
				return commandline.Found("handler %q is still draining: %s left; wait again by \"berth handler drain %s\", or undo it by \"berth handler uncordon %s\"",
					req.GetName(), output.Pods(left), req.GetName(), req.GetName())
			}
			return err
		}
		last = resp
		if left = resp.GetPods(); left > 0 {
			p.Step("%s left: %s", output.Pods(left), someOf(resp.GetNames(), int(left)))
		}
	}
	p.End()
	return r.Print(c.OutOrStdout(), last, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "handler %s has no pods, and accepts none until \"berth handler uncordon %s\"\n", req.GetName(), req.GetName())
		return err
	})
}

// gaveUp says whether a call that failed with err ended with its ctx. The daemon may
// see the end of the time first, and say so.
func gaveUp(ctx context.Context, err error) bool {
	return ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded
}

func someOf(names []string, all int) string {
	text := ""
	for i, n := range names {
		if i > 0 {
			text += ", "
		}
		text += n
	}
	if all > len(names) {
		text += ", …"
	}
	return text
}
