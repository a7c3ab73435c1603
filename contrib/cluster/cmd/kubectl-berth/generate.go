package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
)

type generateFlags struct {
	handlers, measurements string
	anyNode, noCapacity    bool
	tolerations            []string
	output                 string
}

// generateCommand is "generate".
type generateCommand struct{ *program }

func (p *generateCommand) command() *cobra.Command {
	f := &generateFlags{}
	c := &cobra.Command{
		Use:   "generate [HANDLER]...",
		Short: "Print a RuntimeClass for each handler",
		Long: `Print a RuntimeClass for each handler that accepts pods, or for the named ones. Handlers
are those of --handlers, else those that the nodes of the cluster report. The overhead is
the measured p95, rounded up; without measurements it is omitted. Each pod also has one
of feature.node.kubernetes.io/handler.NAME.pods: berth-controller says how many a node
has room for. Nodes are selected by the label that those with the handler have,
feature.node.kubernetes.io/handler.NAME.present=true.

Nodes do not report what a handler can do or costs. Without --handlers, a class that the
cluster has keeps its annotations about that, and its overhead unless it was measured anew.`,
		Example: "  kubectl berth generate --handlers handlers.json\n  kubectl berth generate kata --toleration sandboxes:NoSchedule | kubectl apply --server-side -f -\n" +
			"  kubectl berth generate --handlers runc,kata --any-node",
		RunE:              func(c *cobra.Command, args []string) error { return p.generate(c.Context(), f, args) },
		ValidArgsFunction: p.completeHandlers,
	}
	c.Flags().StringVar(&f.handlers, "handlers", "", "names separated by commas, or a `FILE` of handlers, instead of those of the cluster")
	c.Flags().StringVar(&f.measurements, "measurements", "", "`FILE` of handlers with measured overhead")
	c.Flags().StringArrayVar(&f.tolerations, "toleration", nil, "`KEY[=VALUE][:EFFECT]` of taints that the pods tolerate; may be repeated")
	c.Flags().BoolVar(&f.anyNode, "any-node", false, "do not select nodes")
	c.Flags().BoolVar(&f.noCapacity, "no-capacity", false, "do not count pods, and select nodes by whether the handler takes pods: for clusters without berth-controller")
	output.Flag(c, &f.output, "yaml", "json")
	return c
}

func (p *generateCommand) generate(ctx context.Context, f *generateFlags, names []string) error {
	o := runtimeclass.GenerateOptions{AnyNode: f.anyNode, NoCapacity: f.noCapacity}
	for _, text := range f.tolerations {
		t, err := runtimeclass.ParseToleration(text)
		if err != nil {
			return wrong(fmt.Errorf("--toleration: %w", err))
		}
		o.Tolerations = append(o.Tolerations, t)
	}
	handlers, there, err := p.known(ctx, f)
	if err != nil {
		return err
	}
	chosen, err := p.choose(handlers, names)
	if err != nil {
		return err
	}
	var all []runtimeclass.Generated
	for _, h := range chosen {
		g := runtimeclass.Generate(h, o)
		if there != nil {
			if cluster.Keep(g.RuntimeClass, there.Classes) {
				g.Note = "overhead: that of the class in the cluster; --measurements would change it"
			}
		}
		all = append(all, g)
	}
	// Nothing is printed before all of it is there.
	text, err := written(all, f.output)
	if err != nil {
		return err
	}
	if there != nil {
		p.lacks(all, there.Nodes)
	} else {
		p.needs(all, f.anyNode)
	}
	_, err = p.Out.Write(text)
	return err
}

// known are the handlers of --handlers, or else those of the cluster and its state, with what
// was measured.
func (p *generateCommand) known(ctx context.Context, f *generateFlags) (handlers []runtimeclass.Handler, there *cluster.State, err error) {
	if f.handlers != "" {
		handlers, err = p.handlers(f.handlers)
	} else {
		var s *server
		if s, err = p.connect(); err != nil {
			return nil, nil, err
		}
		if there, err = s.state(ctx); err != nil {
			return nil, nil, err
		}
		if handlers = cluster.Handlers(there); len(handlers) == 0 {
			return nil, nil, errors.New("no node of the cluster reports handlers, which needs Kubernetes 1.30 and a CRI daemon that supports it; use --handlers")
		}
	}
	if err != nil {
		return nil, nil, err
	}
	handlers, err = p.measured(handlers, f.measurements)
	return handlers, there, err
}

// lacks notes which generated classes have pods that would stay pending in a cluster, and why.
func (p *generateCommand) lacks(all []runtimeclass.Generated, nodes []corev1.Node) {
	for _, g := range all {
		if cluster.Unlabelled(g.RuntimeClass, nodes) {
			p.note("class %s selects nodes by %s, which no node has yet: its pods stay pending until one does; --any-node omits the selector", g.Name, labels.Set(g.Scheduling.NodeSelector))
		}
		if cluster.Uncounted(g.RuntimeClass, nodes) {
			p.note("pods of class %s are counted, and no node has their resource yet: they stay pending until berth-controller runs; --no-capacity omits it", g.Name)
		}
	}
}

// needs notes what a cluster must run for pods of generated classes.
func (p *generateCommand) needs(all []runtimeclass.Generated, anyNode bool) {
	switch g := all[0]; {
	case runtimeclass.Counted(g.RuntimeClass):
		p.note("pods of these classes stay pending unless Node Feature Discovery and berth-controller run; without the controller use --no-capacity, without both also --any-node")
	case !anyNode:
		p.note("pods of these classes stay pending unless Node Feature Discovery runs; without it label nodes by \"berth handlers --print-labels\", or use --any-node")
	}
}

// choose are the handlers that were named, else those that take pods.
func (p *generateCommand) choose(handlers []runtimeclass.Handler, names []string) ([]runtimeclass.Handler, error) {
	chosen, passed, err := runtimeclass.Choose(handlers, names)
	if err != nil {
		return nil, wrong(err)
	}
	for _, h := range passed {
		p.note("handler %s is %s; no class is generated", h.Name, h.State)
	}
	if len(chosen) == 0 {
		return nil, found("no handler accepts pods; name one to generate its class anyway")
	}
	return chosen, nil
}

// written are classes as kubectl reads them: documents with a comment, or a list.
func written(all []runtimeclass.Generated, form string) ([]byte, error) {
	if form == "json" {
		list := nodev1.RuntimeClassList{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClassList"}}
		for _, g := range all {
			list.Items = append(list.Items, *g.RuntimeClass)
		}
		text, err := json.MarshalIndent(list, "", "  ")
		return append(text, '\n'), err
	}
	var b bytes.Buffer
	for i, g := range all {
		text, err := yaml.Marshal(g.RuntimeClass)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		fmt.Fprintf(&b, "# %s\n%s", g.Note, text)
	}
	return b.Bytes(), nil
}
