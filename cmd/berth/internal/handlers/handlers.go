// Package handlers has the commands that show, change and operate handlers.
package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/nodelabel"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// ListCommand returns the command "berth handlers".
func ListCommand() *cobra.Command {
	r := &cli.Remote{Timeout: cli.CallTimeout}
	watch, labels, node := false, false, ""
	c := &cobra.Command{
		Use:   "handlers",
		Short: "List the handlers that pods can request, and their state",
		Long: `List the handlers of the running daemon, as RunPodSandbox uses them now. The default
handler is marked (default). GEN is the configuration generation that the handler's
current definition came with.

With --print-labels, print the node's labels for its handlers as key=value, for nodes
without Node Feature Discovery. -o json and -o yaml print a Node with only these labels,
for "kubectl apply --server-side".`,
		Example: "  berth handlers\n  berth handlers -o wide\n  berth handlers --watch\n" +
			"  kubectl label node NODE --overwrite $(berth handlers --print-labels)\n" +
			"  berth handlers --print-labels --node NODE -o yaml | kubectl apply --server-side --field-manager=berth-labels -f -",
		Args: cobra.NoArgs,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if labels {
			return printLabels(r, c, node)
		}
		if node != "" {
			return commandline.Misused(c, errors.New("--node needs --print-labels"))
		}
		if watch {
			r.Timeout = 0
		}
		return r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
			if watch {
				return watchHandlers(ctx, r, c.OutOrStdout(), daemon)
			}
			resp, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
			if err != nil {
				return err
			}
			return r.Print(c.OutOrStdout(), resp, r.Table(handlerTable(resp.GetHandlers(), r.Wide())))
		})(c, args)
	}
	r.Flags(c)
	r.ListFlags(c, "the names of handlers")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "keep running, and list them again after each change")
	c.Flags().BoolVar(&labels, "print-labels", false, "print the node's labels for its handlers")
	c.Flags().StringVar(&node, "node", "", "with --print-labels -o json or yaml: the node's name (default: the host name)")
	c.MarkFlagsMutuallyExclusive("watch", "print-labels", "quiet")
	return c
}

// watchHandlers prints the handlers now and after each change. An interrupt is not an error.
func watchHandlers(ctx context.Context, r *cli.Remote, w io.Writer, daemon *client.Client) error {
	stream, err := daemon.WatchHandlers(ctx, &adminv1.WatchHandlersRequest{})
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		resp, err := stream.Recv()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if !first && r.Output != "json" {
			fmt.Fprintln(w)
		}
		if r.Output == "yaml" && !first {
			fmt.Fprintln(w, "---")
		}
		if err := r.Print(w, resp, r.Table(handlerTable(resp.GetHandlers(), r.Wide()))); err != nil {
			return err
		}
	}
}

func handlerTable(handlers []*adminv1.Handler, wide bool) *output.Table {
	t := &output.Table{Header: []string{"NAME", "STATE", "TYPE", "RUNTIME", "PODS", "GEN"}, Whole: wide}
	if wide {
		t.Header = append(t.Header, "PLATFORM", "PATH", "DIGEST", "ORIGIN")
	}
	t.Header = append(t.Header, "REASON")
	for _, h := range handlers {
		name := h.GetName()
		if h.GetIsDefault() {
			name += " (default)"
		}
		row := []string{name, cli.StateWord(h.GetState()), cmp.Or(h.GetType(), "-"), cli.RuntimeOf(h), fmt.Sprint(h.GetPods()), fmt.Sprint(h.GetGeneration())}
		if wide {
			row = append(row, cmp.Or(h.GetPlatform(), "-"), h.GetPath(), cli.Short(h.GetDigest()), h.GetOrigin())
		}
		t.Add(append(row, h.GetReason())...)
		t.Names = append(t.Names, h.GetName())
	}
	return t
}

// Command returns the command "berth handler".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:     "handler",
		Short:   "Show, change and operate a handler",
		Example: "  berth handler show gvisor\n  berth handler cordon gvisor",
		Args:    cobra.NoArgs,
	}
	c.AddCommand(showCommand(), probeCommand(), overheadCommand(),
		addCommand(), editCommand(), removeCommand(), drainCommand())
	for _, ch := range changes {
		c.AddCommand(ch.command())
	}
	return c
}

// printLabels prints the labels for the node's handlers. An empty node name means this host.
func printLabels(r *cli.Remote, c *cobra.Command, node string) error {
	return r.Call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, _ []string) error {
		list, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
		if err != nil {
			return err
		}
		if node == "" {
			if node, err = os.Hostname(); err != nil {
				return fmt.Errorf("the name of the node is unknown; set it with --node: %w", err)
			}
			node = strings.ToLower(strings.TrimSpace(node))
		}
		known := knownOf(list.GetHandlers())
		labels := append(nodelabel.Labels(known), nodelabel.Presence(known)...)
		var lines []string
		for _, l := range labels {
			lines = append(lines, l.Key+"="+l.Value)
		}
		return output.Encode(c.OutOrStdout(), r.Output, nodeOf(node, labels), output.Lines(lines))
	})(c, nil)
}

func knownOf(handlers []*adminv1.Handler) []nodelabel.Known {
	var all []nodelabel.Known
	for _, h := range handlers {
		all = append(all, nodelabel.Known{Name: h.GetName(), Phase: handler.Phase(cli.StateWord(h.GetState())), Default: h.GetIsDefault(), MaxPods: int(h.GetMaxPods()), Can: client.Capabilities(h)})
	}
	return all
}

// nodeOf returns a Node with only labels. A server-side apply of it owns these labels, and removes
// those that only the previous apply had.
func nodeOf(name string, labels []nodelabel.Fact) map[string]any {
	values := map[string]string{}
	for _, l := range labels {
		values[l.Key] = l.Value
	}
	return map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "labels": values}}
}
