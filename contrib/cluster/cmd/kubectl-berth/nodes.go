package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// nodesCommand is the command nodes.
type nodesCommand struct{ *program }

func (p *nodesCommand) command() *cobra.Command {
	var selector, form string
	c := &cobra.Command{
		Use:   "nodes [NODE]...",
		Short: "Show which handlers nodes have, and which are missing",
		Long: `Show which handlers each node reports (Node.status.runtimeHandlers), and its gaps:
handlers that other nodes have, and in brackets the classes that select the node although
it does not have their handler, so that their pods never start there. "default" is what
pods without a class get. -o wide adds the features of handlers, their labels, and
versions.`,
		Example: `  kubectl berth nodes
  kubectl berth nodes -l pool=sandboxes -o wide
  kubectl berth nodes node-1 -o json`,
		RunE: func(c *cobra.Command, args []string) error { return p.nodes(c.Context(), args, selector, form) },
		ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return p.names(func(s *server) ([]string, error) {
				nodes, err := s.nodes(c.Context())
				var all []string
				for i := range nodes {
					all = append(all, nodes[i].Name)
				}
				return all, err
			}), cobra.ShellCompDirectiveNoFileComp
		},
	}
	c.Flags().StringVarP(&selector, "selector", "l", "", "show only nodes with these `LABELS`; gaps still consider all nodes")
	output.Flag(c, &form, misused, output.Forms...)
	return c
}

func (s *server) nodes(ctx context.Context) ([]corev1.Node, error) {
	return list[corev1.Node](ctx, s, "nodes", s.core.Nodes().List, metav1.ListOptions{})
}

func (s *server) runtimeClasses(ctx context.Context) ([]nodev1.RuntimeClass, error) {
	return list[nodev1.RuntimeClass](ctx, s, "runtimeclasses.node.k8s.io", s.classes.List, metav1.ListOptions{})
}

func (p *nodesCommand) nodes(ctx context.Context, names []string, selector, form string) error {
	by, err := labels.Parse(selector)
	if err != nil {
		return wrong(fmt.Errorf("--selector: %w", err))
	}
	s, err := p.connect()
	if err != nil {
		return err
	}
	state, err := s.state(ctx)
	if err != nil {
		return err
	}
	var there []string
	for i := range state.Nodes {
		there = append(there, state.Nodes[i].Name)
	}
	for _, name := range names {
		if !slices.Contains(there, name) {
			return fmt.Errorf("node %q does not exist%s", name, instead(name, there))
		}
	}
	shown := []cluster.Node{}
	for i, n := range cluster.Nodes(state) {
		if by.Matches(labels.Set(state.Nodes[i].Labels)) && (len(names) == 0 || slices.Contains(names, n.Name)) {
			shown = append(shown, n)
		}
	}
	switch {
	case len(state.Nodes) == 0:
		p.note("the cluster has no nodes")
	case len(shown) == 0:
		p.note("no nodes match; nodes in the cluster: %d", len(state.Nodes))
	}
	return output.Encode(p.Out, form, map[string]any{"nodes": shown}, func(w io.Writer) error { return nodesTable(shown, form == "wide").Write(w) })
}

func nodesTable(all []cluster.Node, wide bool) *output.Table {
	t := &output.Table{Header: []string{"NODE", "STATUS", "HANDLERS", "GAPS"}, Whole: wide}
	if wide {
		t.Header = append(t.Header, "LABELS", "RUNTIME", "KUBELET", "REASON")
	}
	for _, n := range all {
		row := []string{n.Name, nodeStatus(n), or(strings.Join(handlersOf(n, wide), ", ")), or(strings.Join(gapsOf(n), ", "))}
		if !n.Reports {
			row[2] = "not reported"
		}
		if wide {
			var about []string
			for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
				about = append(about, strings.TrimPrefix(key, nodelabel.Prefix)+"="+n.Labels[key])
			}
			row = append(row, or(strings.Join(about, ",")), or(n.Runtime), or(n.Kubelet), or(n.Reason))
		}
		t.Add(row...)
	}
	return t
}

// nodeStatus is kubectl's.
func nodeStatus(n cluster.Node) string {
	status := "Ready"
	if !n.Ready {
		status = "NotReady"
	}
	if n.Cordoned {
		status += ",SchedulingDisabled"
	}
	return status
}

func handlersOf(n cluster.Node, features bool) []string {
	var all []string
	for _, h := range n.Handlers {
		text := h.Name
		if text == "" {
			text = "default"
		}
		if features && len(h.Features) > 0 {
			var names []string
			for _, f := range h.Features {
				names = append(names, string(f))
			}
			text += " [" + strings.Join(names, " ") + "]"
		}
		all = append(all, text)
	}
	return all
}

func gapsOf(n cluster.Node) []string {
	var all []string
	for _, g := range n.Gaps {
		text := g.Handler
		if len(g.Classes) > 0 {
			text += " [" + strings.Join(g.Classes, " ") + "]"
		}
		if g.Labelled {
			text += " (labelled)"
		}
		all = append(all, text)
	}
	return all
}
