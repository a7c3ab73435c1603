package handlers

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/nodelabel"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// labelledNode is a Node that says nothing but its labels: who applies it owns these,
// and takes away those that the next one has no more.
type labelledNode struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   nodeMetadata `json:"metadata"`
}

type nodeMetadata struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

// printLabels prints the labels of the node's handlers. An empty node is this host.
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

func nodeOf(name string, labels []nodelabel.Fact) labelledNode {
	n := labelledNode{"v1", "Node", nodeMetadata{name, map[string]string{}}}
	for _, l := range labels {
		n.Metadata.Labels[l.Key] = l.Value
	}
	return n
}
