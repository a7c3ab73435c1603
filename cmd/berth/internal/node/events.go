package node

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// EventsCommand returns the command "berth events".
func EventsCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	handler := ""
	c := &cobra.Command{
		Use:   "events",
		Short: "List the last changes of handlers, and their cause",
		Long: `List changes of handlers, reloads that failed or changed something, and starts of the
daemon. The oldest event is the first. berth keeps the last 500 events, also after a
restart. BY is a user ("uid 0"), the cause of a reload (files, signal), or berth itself.`,
		Example: "  berth events\n  berth events --handler gvisor\n  berth events -o json",
		Args:    cobra.NoArgs,
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			resp, err := daemon.ListEvents(ctx, &adminv1.ListEventsRequest{Handler: handler})
			if err != nil {
				return err
			}
			return r.Print(c.OutOrStdout(), resp, r.Table(eventTable(resp.GetEvents(), r.Wide())))
		}),
	}
	r.Flags(c)
	r.NoHeadersFlag(c)
	r.HandlerFlag(c, &handler, "only the changes of this handler")
	return c
}

func eventTable(events []*adminv1.HistoryEvent, wide bool) *output.Table {
	t := &output.Table{Header: []string{"TIME", "HANDLER", "WHAT", "FROM", "TO", "BY", "REASON"}, Whole: wide}
	for _, e := range events {
		t.Add(e.GetAt().AsTime().Format(time.RFC3339), cmp.Or(e.GetHandler(), "-"), e.GetWhat(), cmp.Or(e.GetFrom(), "-"), cmp.Or(e.GetTo(), "-"), e.GetBy(), e.GetReason())
	}
	return t
}
