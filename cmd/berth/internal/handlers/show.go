package handlers

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/printable"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func showCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	c := &cobra.Command{
		Use:     "show [NAME]",
		Short:   "Show all details of a handler, or of the default one",
		Example: "  berth handler show\n  berth handler show gvisor -o yaml",
		Args:    cobra.MaximumNArgs(1),
		RunE: r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			resp, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: first(args)})
			if err != nil {
				return err
			}
			return r.Print(c.OutOrStdout(), resp, func(w io.Writer) error { return showHandler(w, resp, r.Wide()) })
		}),
		ValidArgsFunction: r.CompleteHandlers,
	}
	r.Flags(c)
	return c
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func showHandler(w io.Writer, resp *adminv1.GetHandlerResponse, wide bool) error {
	h := resp.GetHandler()
	if err := output.Fields([][2]string{
		{"name", h.GetName() + map[bool]string{true: " (default)"}[h.GetIsDefault()]},
		{"state", cli.StateWord(h.GetState())},
		{"reason", h.GetReason()},
		{"runtime", cli.RuntimeOf(h)},
		{"binary", binaryLine(resp.GetBinary())},
		{"probed", probedLine(h)},
		{"state since", cli.Ago(h.GetStateSince().AsTime()) + after(", by ", h.GetStateBy())},
		{"starts", startsLine(h.GetStarts())},
		{"conforms to", strings.Join(h.GetCapabilities().GetConforms(), ", ")},
		{"rollout", rolloutLine(h.GetRollout())},
		{"pods", fmt.Sprint(h.GetPods())},
		{"since generation", fmt.Sprint(h.GetGeneration())},
		{"digest", h.GetDigest()},
		{"from", originLine(h)},
	})(w); err != nil {
		return err
	}
	if text := strings.TrimSpace(resp.GetLastFailure()); text != "" {
		fmt.Fprintf(w, "last failure:\n  %s\n", strings.ReplaceAll(printable.Lines(text), "\n", "\n  "))
	}
	if len(resp.GetSettings()) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	return settingTable(resp.GetSettings(), wide).Write(w)
}

func settingTable(settings []*adminv1.Setting, wide bool) *output.Table {
	t := &output.Table{Header: []string{"KEY", "VALUE", "FROM"}, Whole: wide}
	for _, s := range settings {
		t.Add(s.GetKey(), s.GetValue(), s.GetOrigin())
	}
	return t
}

// startsLine summarizes the last starts of a handler; "" before the first.
func startsLine(s *adminv1.Starts) string {
	if s.GetRecent() == 0 {
		return ""
	}
	return fmt.Sprintf("%d of the last %d failed, %d in a row", s.GetFailed(), s.GetRecent(), s.GetInARow()) +
		after("; the last "+cli.Ago(s.GetFailedAt().AsTime())+": ", s.GetError())
}

func binaryLine(b *adminv1.Binary) string {
	line := b.GetPath()
	if b.GetSizeBytes() > 0 {
		line += fmt.Sprintf(", %d bytes, of %s", b.GetSizeBytes(), b.GetModifiedAt().AsTime().Format(time.RFC3339))
	}
	if b.GetRuns() != b.GetPath() {
		line += ", runs as " + b.GetRuns()
	}
	return line
}

func probedLine(h *adminv1.Handler) string {
	if h.GetProbedAt() == nil {
		return ""
	}
	return cli.Ago(h.GetProbedAt().AsTime()) + after(": ", h.GetProbeError())
}

func originLine(h *adminv1.Handler) string {
	if h.GetManaged() {
		return h.GetOrigin() + fmt.Sprintf(" (berth handler edit %s)", h.GetName())
	}
	return h.GetOrigin()
}

// after returns a text after a separator, or "" without a text.
func after(separator, text string) string {
	if text == "" {
		return ""
	}
	return separator + text
}
