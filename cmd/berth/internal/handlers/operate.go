package handlers

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

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

// change is a command that changes the use of a handler by one call.
type change struct {
	use, short, long, example string
	// reason is the help of --reason; empty for a command without that flag.
	reason string
	call   func(ctx context.Context, daemon *client.Client, name, reason string) (changed, error)
	// line returns the output for the changed handler.
	line func(*adminv1.Handler) string
}

// changed is the daemon's answer to a change of a handler.
type changed interface {
	proto.Message
	GetHandler() *adminv1.Handler
}

const rejectionReason = "reason, in one line; shown in the error of rejected pods"

var changes = []change{
	{
		use: "cordon NAME", short: "Stop accepting new pods under a handler",
		long: `Reject new pods of a handler with Unavailable and the reason, until it is uncordoned.
Existing pods are not affected. A cordon survives restarts of the daemon.`,
		example: `  berth handler cordon kata --reason "disk is being replaced"`,
		reason:  rejectionReason,
		call: func(ctx context.Context, daemon *client.Client, name, reason string) (changed, error) {
			return daemon.Cordon(ctx, &adminv1.CordonRequest{Name: name, Reason: reason})
		},
		line: stateLine,
	},
	{
		use: "uncordon NAME", short: "Accept new pods again after a cordon or drain", example: "  berth handler uncordon kata",
		call: func(ctx context.Context, daemon *client.Client, name, _ string) (changed, error) {
			return daemon.Uncordon(ctx, &adminv1.UncordonRequest{Name: name})
		},
		line: stateLine,
	},
	{
		use: "promote NAME", short: "Complete a rollout: run all new pods on the candidate binary",
		long: `Run all new pods of a handler on the handler's candidate binary. Existing pods keep
their binary. A promotion survives restarts of berth. It ends if the candidate is
changed in the configuration or replaced on disk.

After a promotion, edit the configuration: write the candidate's path as runtime_path,
and remove the candidate.`,
		example: "  berth handler promote runc",
		call: func(ctx context.Context, daemon *client.Client, name, _ string) (changed, error) {
			return daemon.Promote(ctx, &adminv1.PromoteRequest{Name: name})
		},
		line: func(h *adminv1.Handler) string { return "handler " + h.GetName() + ": " + rolloutLine(h.GetRollout()) },
	},
	{
		use: "abort NAME", short: "Abort a rollout: stop using the candidate binary",
		long: `Abort the rollout of a handler's candidate binary: new pods do not run on the candidate.
Existing pods keep their binary. An abort also reverts "berth handler promote". It
survives restarts of berth. It ends if the candidate is changed in the configuration or
replaced on disk.`,
		example: `  berth handler abort runc --reason "pods start slowly"`,
		reason:  "reason, in one line",
		call: func(ctx context.Context, daemon *client.Client, name, reason string) (changed, error) {
			return daemon.Abort(ctx, &adminv1.AbortRequest{Name: name, Reason: reason})
		},
		line: func(h *adminv1.Handler) string { return "handler " + h.GetName() + ": " + rolloutLine(h.GetRollout()) },
	},
}

func (ch change) command() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	reason := ""
	c := &cobra.Command{
		Use: ch.use, Short: ch.short, Long: ch.long, Example: ch.example, Args: cobra.ExactArgs(1), ValidArgsFunction: r.CompleteHandlers,
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			resp, err := ch.call(ctx, daemon, args[0], reason)
			if err != nil {
				return err
			}
			return r.Print(c.OutOrStdout(), resp, output.Line("%s", ch.line(resp.GetHandler())))
		}),
	}
	r.Flags(c)
	if ch.reason != "" {
		c.Flags().StringVar(&reason, "reason", "", ch.reason)
	}
	return c
}

func stateLine(h *adminv1.Handler) string {
	line := fmt.Sprintf("handler %s is %s", h.GetName(), cli.StateWord(h.GetState()))
	if h.GetReason() == "" && h.GetRuntimeVersion() != "" {
		return line + ": " + cli.RuntimeOf(h)
	}
	return line + after(": ", h.GetReason())
}

// rolloutLine returns the status of a rollout, or "" without one.
func rolloutLine(t *adminv1.Rollout) string {
	if t == nil {
		return ""
	}
	line := fmt.Sprintf("%s is %s", t.GetPath(), t.GetState())
	if t.GetState() == "running" {
		line = fmt.Sprintf("%s runs %d%% of new pods", t.GetPath(), t.GetPercent())
	}
	return line + after(": ", t.GetReason())
}

func drainCommand() *cobra.Command {
	r := &cli.Remote{}
	reason := ""
	c := &cobra.Command{
		Use:   "drain NAME",
		Short: "Cordon a handler, and wait until its last pod is gone",
		Long: `Cordon a handler and wait until it has no pods. berth stops no pods: evict them, with
"kubectl drain" or a rollout of the workload. An interrupt or --timeout ends only the
wait, with exit status 3; the handler accepts no new pods until "berth handler uncordon".`,
		Example: "  berth handler drain kata --timeout 10m",
		Args:    cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			return drain(ctx, r, c, daemon, &adminv1.DrainRequest{Name: args[0], Reason: reason})
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	c.Flags().StringVar(&reason, "reason", "", rejectionReason)
	c.Flags().DurationVar(&r.Timeout, "timeout", 0, "how long to wait; 0 waits until the handler has no pods")
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
				return commandline.Found("handler %q is still draining: %s left; wait again with \"berth handler drain %s\", or undo it with \"berth handler uncordon %s\"",
					req.GetName(), output.Pods(left), req.GetName(), req.GetName())
			}
			return err
		}
		last = resp
		if left = resp.GetPods(); left > 0 {
			names := strings.Join(resp.GetNames(), ", ")
			if int(left) > len(resp.GetNames()) {
				names += ", …"
			}
			p.Step("%s left: %s", output.Pods(left), names)
		}
	}
	p.End()
	return r.Print(c.OutOrStdout(), last, output.Line("handler %s has no pods, and accepts none until \"berth handler uncordon %s\"", req.GetName(), req.GetName()))
}

// gaveUp reports whether a call failed because its ctx ended. The daemon may return the deadline's
// error first.
func gaveUp(ctx context.Context, err error) bool {
	return ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded
}

func probeCommand() *cobra.Command {
	r := &cli.Remote{}
	selfCheck := false
	c := &cobra.Command{
		Use:   "probe NAME",
		Short: "Probe a handler's runtime again and update the handler's state",
		Long: `Probe a handler's runtime again, wait for the result, and update the handler's state.
With --self-check, also run self-check pods under the handler and wait for them.
Self-check pods are not in any list of pods, and are removed completely. The exit status
is 3 if the handler cannot run pods, or if the result is not known within --timeout.`,
		Example: "  berth handler probe kata --self-check",
		Args:    cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			resp, err := probe(ctx, c, daemon, args[0], selfCheck)
			if err != nil {
				return err
			}
			h := resp.GetHandler()
			if err := r.Print(c.OutOrStdout(), resp, output.Line("%s", stateLine(h))); err != nil {
				return err
			}
			if why := cmp.Or(h.GetProbeError(), h.GetReason()); h.GetProbeError() != "" || h.GetState() == adminv1.State_STATE_NOT_READY {
				return commandline.Found("handler %q cannot run pods: %s; correct that, then run \"berth handler probe %s\"", h.GetName(), why, h.GetName())
			}
			return nil
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	c.Flags().BoolVar(&selfCheck, "self-check", false, "also run self-check pods under the handler")
	c.Flags().DurationVar(&r.Timeout, "timeout", 0, "how long to wait; 0 waits until the probe ends (at most 10 s for the runtime, and self_check_timeout for each self-check pod)")
	return c
}

// probe probes a handler, and shows the elapsed time on a terminal.
func probe(ctx context.Context, c *cobra.Command, daemon *client.Client, name string, selfCheck bool) (*adminv1.ProbeResponse, error) {
	what := "runtime"
	if selfCheck {
		what = "self-check pod"
	}
	if output.Width(c.ErrOrStderr()) > 0 {
		p, begun := cli.NewProgress(c.ErrOrStderr()), time.Now()
		defer p.Every(time.Second, func() {
			p.Step("Waiting for the %s of handler %q (%d s)", what, name, int(time.Since(begun).Seconds()))
		})()
	}
	resp, err := daemon.Probe(ctx, &adminv1.ProbeRequest{Name: name, SelfCheck: selfCheck})
	if err != nil && gaveUp(ctx, err) {
		return nil, commandline.Found("the %s of handler %q did not finish in time; the daemon is still waiting for it, see \"berth handler show %s\"", what, name, name)
	}
	return resp, err
}
