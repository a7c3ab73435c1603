package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// listCommand is "classes".
type listCommand struct{ *program }

func (p *listCommand) command() *cobra.Command {
	var form string
	c := &cobra.Command{
		Use:   "classes [CLASS]...",
		Short: "Show what RuntimeClasses give: isolation, overhead, and what they do not support",
		Long: `Show what RuntimeClasses give to pods: isolation, the sets of properties that their
handler conforms to, overhead, and which capabilities it does not support. It comes from annotations that "generate" writes
into classes, so the right to list classes is enough; nodes are not read. Of a class
without these annotations only the handler and the overhead are known. -o wide adds the
capabilities that are supported, those of which that is not known, and the node selector.`,
		Example: `  kubectl berth classes
  kubectl berth classes kata -o wide
  kubectl berth classes -o json`,
		RunE: func(c *cobra.Command, args []string) error { return p.listClasses(c.Context(), args, form) },
		ValidArgsFunction: func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return p.names(func(s *server) ([]string, error) {
				classes, err := s.runtimeClasses(c.Context())
				var all []string
				for i := range classes {
					all = append(all, classes[i].Name)
				}
				return all, err
			}), cobra.ShellCompDirectiveNoFileComp
		},
	}
	output.Flag(c, &form, misused, output.Forms...)
	return c
}

// listedClass is what classes prints of one.
type listedClass struct {
	Name    string `json:"name"`
	Handler string `json:"handler"`
	// Default: pods without a class get the handler, too.
	Default      bool                                 `json:"default,omitempty"`
	Isolation    capability.Isolation                 `json:"isolation,omitempty"`
	Conforms     []string                             `json:"conforms,omitempty"`
	Overhead     corev1.ResourceList                  `json:"overhead,omitempty"`
	NodeSelector map[string]string                    `json:"nodeSelector,omitempty"`
	Capabilities map[capability.Name]capability.Known `json:"capabilities,omitempty"`

	handler runtimeclass.Handler
}

func (p *listCommand) listClasses(ctx context.Context, names []string, form string) error {
	s, err := p.connect()
	if err != nil {
		return err
	}
	classes, err := s.runtimeClasses(ctx)
	if err != nil {
		return err
	}
	if len(classes) == 0 && len(names) == 0 {
		p.note("the cluster has no RuntimeClasses; \"kubectl berth generate --handlers\" prints one for each handler of a node")
	}
	shown := []listedClass{}
	for i := range classes {
		c := runtimeclass.Class{Source: runtimeclass.Source{File: "the cluster"}, Version: "v1", RuntimeClass: &classes[i]}
		if len(names) > 0 && !slices.Contains(names, c.Name) {
			continue
		}
		h, err := c.Annotated()
		if err != nil {
			p.note("%v", err)
		}
		one := listedClass{Name: c.Name, Handler: c.Handler, Default: h.Default, Isolation: h.Isolation, Conforms: h.Conforms, Capabilities: h.Capabilities, handler: h}
		if c.Overhead != nil {
			one.Overhead = c.Overhead.PodFixed
		}
		if c.Scheduling != nil {
			one.NodeSelector = c.Scheduling.NodeSelector
		}
		shown = append(shown, one)
	}
	var there []string
	for i := range classes {
		there = append(there, classes[i].Name)
	}
	for _, name := range names {
		if !slices.Contains(there, name) {
			return fmt.Errorf("RuntimeClass %q does not exist%s", name, instead(name, there))
		}
	}
	return output.Encode(p.Out, form, map[string]any{"classes": shown}, func(w io.Writer) error { return classesTable(shown, form == "wide").Write(w) })
}

func classesTable(all []listedClass, wide bool) *output.Table {
	t := &output.Table{Header: []string{"CLASS", "HANDLER", "ISOLATION", "CONFORMS", "OVERHEAD", "NOT SUPPORTED"}, Whole: wide}
	if wide {
		t.Header = append(t.Header, "UNKNOWN", "SUPPORTED", "NODES")
	}
	for _, c := range all {
		handler := c.Handler
		if c.Default {
			handler += " (default)"
		}
		by := map[capability.Answer][]string{}
		known := c.handler.Anywhere()
		for _, name := range known.Sorted() {
			answer := known.Of(name).Answer
			by[answer] = append(by[answer], string(name))
		}
		lacks := or(strings.Join(by[capability.No], ", "))
		if known.Empty() {
			lacks = "not annotated"
		}
		row := []string{c.Name, handler, or(string(c.Isolation)), or(strings.Join(c.Conforms, ", ")), or(costs(c.Overhead)), lacks}
		if wide {
			row = append(row, or(strings.Join(by[capability.Unknown], ", ")), or(strings.Join(by[capability.Yes], ", ")), or(labels.Set(c.NodeSelector).String()))
		}
		t.Add(row...)
	}
	return t
}
