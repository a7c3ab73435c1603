package handlers

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func probeCommand() *cobra.Command {
	r := &cli.Remote{}
	selfCheck := false
	c := &cobra.Command{
		Use:   "probe NAME",
		Short: "Probe a handler's runtime again and update the handler's state",
		Long: `Probe a handler's runtime again, wait for the result, and set the handler's state by
it. With --self-check, also run a self-check pod under it and wait for that; it is not
listed by any other call, and is removed completely. The exit status is 3 if the
handler cannot run pods, or if that is not known within --timeout.`,
		Args: cobra.ExactArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			resp, err := probe(ctx, r, c, daemon, args[0], selfCheck)
			if err != nil {
				return err
			}
			h := resp.GetHandler()
			if err := r.Print(c.OutOrStdout(), resp, output.Line("%s", stateLine(h))); err != nil {
				return err
			}
			if why := cmp.Or(h.GetProbeError(), h.GetReason()); h.GetProbeError() != "" || h.GetState() == adminv1.State_STATE_NOT_READY {
				return commandline.Found("handler %q cannot run pods: %s\nfix that, then \"berth handler probe %s\"", h.GetName(), why, h.GetName())
			}
			return nil
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	c.Flags().BoolVar(&selfCheck, "self-check", false, "also run a self-check pod under the handler")
	probeTimeoutFlag(r, c)
	return c
}

func probeTimeoutFlag(r *cli.Remote, c *cobra.Command) {
	c.Flags().DurationVar(&r.Timeout, "timeout", 0, "how long to wait; 0 waits until the handler's self_check_timeout")
}

// probe has a handler probed, and says on a terminal that it is waited for.
func probe(ctx context.Context, r *cli.Remote, c *cobra.Command, daemon *client.Client, name string, selfCheck bool) (*adminv1.ProbeResponse, error) {
	what := "runtime"
	if selfCheck {
		what = "self-check pod"
	}
	if output.Width(c.ErrOrStderr()) > 0 {
		defer waiting(cli.NewProgress(c.ErrOrStderr()), "Waiting for the %s of handler %q", what, name)()
	}
	resp, err := daemon.Probe(ctx, &adminv1.ProbeRequest{Name: name, SelfCheck: selfCheck})
	if err != nil && gaveUp(ctx, err) {
		return nil, commandline.Found("the %s of handler %q did not finish in time; the daemon is still waiting for it, see \"berth handler show %s\"", what, name, name)
	}
	return resp, err
}

// waiting shows for how long something has been waited for, from the second second on.
func waiting(p *cli.Progress, format string, args ...any) (stop func()) {
	begun := time.Now()
	return p.Every(time.Second, func() {
		p.Step(format+" (%d s)", append(args[:len(args):len(args)], int(time.Since(begun).Seconds()))...)
	})
}
