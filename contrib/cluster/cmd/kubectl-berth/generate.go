package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
)

type generateCommand struct {
	*program
	list, measurements  string
	anyNode, noCapacity bool
	tolerations         []string
	output              string
}

func (p *generateCommand) command() *cobra.Command {
	c := &cobra.Command{
		Use:   "generate [HANDLER]...",
		Short: "Print a RuntimeClass for each handler",
		Long: `Print a RuntimeClass for each handler that accepts pods, or only for the handlers that you
name. Without --handlers, the handlers of the cluster's nodes are used. The overhead is the
measured p95, rounded up. Without measurements, the class has no overhead of CPU and memory.

Each pod also requests 1 of the resource feature.node.kubernetes.io/handler.NAME.pods.
berth-controller sets the nodes' capacity of this resource. The class selects nodes with the
label feature.node.kubernetes.io/handler.NAME.present=true.

Nodes report few capabilities and no overhead. So without --handlers, a class that exists in
the cluster keeps its annotations about the handler. The class also keeps its overhead,
unless --measurements has a new value.`,
		Example: "  kubectl berth generate --handlers handlers.json\n  kubectl berth generate kata --toleration sandboxes:NoSchedule | kubectl apply --server-side -f -\n" +
			"  kubectl berth generate --handlers runc,kata --any-node",
		RunE:              func(c *cobra.Command, args []string) error { return p.generate(c.Context(), args) },
		ValidArgsFunction: p.completeNames(handlerNames),
	}
	c.Flags().StringVar(&p.list, "handlers", "", "names separated by commas, or a `FILE` of handlers, instead of the cluster's handlers")
	c.Flags().StringVar(&p.measurements, "measurements", "", "`FILE` of handlers with measured overhead")
	c.Flags().StringArrayVar(&p.tolerations, "toleration", nil, "`KEY[=VALUE][:EFFECT]` of taints that the pods tolerate; may be repeated")
	c.Flags().BoolVar(&p.anyNode, "any-node", false, "do not select nodes")
	c.Flags().BoolVar(&p.noCapacity, "no-capacity", false, "for clusters without berth-controller: omit the resource, and select only nodes where the handler accepts pods")
	output.Flag(c, &p.output, "yaml", "json")
	return c
}

func (p *generateCommand) generate(ctx context.Context, names []string) error {
	o := runtimeclass.GenerateOptions{AnyNode: p.anyNode, NoCapacity: p.noCapacity}
	for _, text := range p.tolerations {
		t, err := runtimeclass.ParseToleration(text)
		if err != nil {
			return commandline.Wrong(fmt.Errorf("--toleration: %w", err))
		}
		o.Tolerations = append(o.Tolerations, t)
	}
	handlers, there, err := p.known(ctx)
	if err != nil {
		return err
	}
	chosen, err := p.choose(handlers, names)
	if err != nil {
		return err
	}
	var classes []*nodev1.RuntimeClass
	var comments []string
	for _, h := range chosen {
		c, note := runtimeclass.Generate(h, o)
		if there != nil && cluster.Keep(c, there.Classes) {
			note = "overhead: that of the class in the cluster; --measurements would change it"
		}
		classes, comments = append(classes, c), append(comments, note)
	}
	if there != nil {
		p.notePending(classes, there.Nodes)
	} else {
		p.noteRequirements(classes)
	}
	return printObjects(p.program, p.output, classes, comments)
}

// known returns handlers with their measurements: those of --handlers or, without it, of the
// cluster. there is the cluster's state, or nil with --handlers.
func (p *generateCommand) known(ctx context.Context) (handlers []runtimeclass.Handler, there *cluster.State, err error) {
	if p.list != "" {
		handlers, err = p.handlers(p.list)
	} else {
		var s *server
		if s, err = p.connect(); err != nil {
			return nil, nil, err
		}
		if there, err = s.state(ctx); err != nil {
			return nil, nil, err
		}
		if handlers = cluster.Handlers(there); len(handlers) == 0 {
			return nil, nil, errors.New("no node of the cluster reports handlers, which needs Kubernetes 1.31 and a CRI daemon that supports it; use --handlers")
		}
	}
	if err != nil {
		return nil, nil, err
	}
	handlers, err = p.measured(handlers, p.measurements)
	return handlers, there, err
}

// notePending prints which generated classes have pods that would stay pending, and why.
func (p *generateCommand) notePending(classes []*nodev1.RuntimeClass, nodes []corev1.Node) {
	for _, c := range classes {
		if cluster.Unlabelled(c, nodes) {
			p.note("class %s selects nodes by %s, which no node has yet: its pods stay pending until a node has it; --any-node omits the selector", c.Name, labels.Set(c.Scheduling.NodeSelector))
		}
		if cluster.Uncounted(c, nodes) {
			p.note("pods of class %s request a resource that no node has yet: they stay pending until berth-controller runs; --no-capacity omits it", c.Name)
		}
	}
}

// noteRequirements prints which components the pods of generated classes require in a cluster.
func (p *generateCommand) noteRequirements(classes []*nodev1.RuntimeClass) {
	switch {
	case runtimeclass.Counted(classes[0]):
		p.note("pods of these classes stay pending unless Node Feature Discovery and berth-controller run; without berth-controller use --no-capacity, without both also --any-node")
	case !p.anyNode:
		p.note("pods of these classes stay pending unless Node Feature Discovery runs; without it label nodes by \"berth handlers --print-labels\", or use --any-node")
	}
}

// choose returns the named handlers, or else those that take pods.
func (p *generateCommand) choose(handlers []runtimeclass.Handler, names []string) ([]runtimeclass.Handler, error) {
	chosen, passed, err := runtimeclass.Choose(handlers, names)
	if err != nil {
		return nil, commandline.Wrong(err)
	}
	for _, h := range passed {
		p.note("handler %s is %s; no class is generated", h.Name, h.State)
	}
	if len(chosen) == 0 {
		return nil, commandline.Found("no handler accepts pods; name one to generate its class anyway")
	}
	return chosen, nil
}
