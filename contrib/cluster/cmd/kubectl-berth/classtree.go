package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/internal/output"
)

// classFlags are those of the commands that need no cluster. Each has some of them.
type classFlags struct {
	handlers     string
	measurements string
	output       string

	anyNode     bool
	noCapacity  bool
	tolerations []string

	live    bool
	against []string
	strict  bool

	rename []string
	write  bool

	classes []string
	prefer  string
}

// classWork is one call of such a command.
type classWork struct {
	*program
	ctx   context.Context
	flags *classFlags
	args  []string
}

// fileCommands need no cluster: generate, lint and migrate.
type fileCommands struct{ *program }

// does has a command do its work with its flags.
func (p *fileCommands) does(c *cobra.Command, f *classFlags, work func(*classWork) error) *cobra.Command {
	c.RunE = func(c *cobra.Command, args []string) error {
		return work(&classWork{p.program, c.Context(), f, args})
	}
	return c
}

func (f *classFlags) handlersFlags(c *cobra.Command, instead string) {
	c.Flags().StringVar(&f.handlers, "handlers", "", "names separated by commas, or a `FILE` of handlers, "+instead)
	c.Flags().StringVar(&f.measurements, "measurements", "", "`FILE` of handlers with measured overhead")
}

func (p *fileCommands) generateCommand() *cobra.Command {
	f := &classFlags{}
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
	}
	f.handlersFlags(c, "instead of those of the cluster")
	c.Flags().StringArrayVar(&f.tolerations, "toleration", nil, "`KEY[=VALUE][:EFFECT]` of taints that the pods tolerate; may be repeated")
	c.Flags().BoolVar(&f.anyNode, "any-node", false, "do not select nodes")
	c.Flags().BoolVar(&f.noCapacity, "no-capacity", false, "do not count pods, and select nodes by whether the handler takes pods: for clusters without berth-controller")
	output.Flag(c, &f.output, misused, "yaml", "json")
	c.ValidArgsFunction = p.completeHandlers
	return p.does(c, f, (*classWork).generate)
}

func (p *fileCommands) lintCommand() *cobra.Command {
	f := &classFlags{}
	c := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Find problems in RuntimeClasses",
		Long: `Find problems in RuntimeClasses: what the API server would reject, in its words; versions
that it no longer serves; handlers that do not exist or accept no pods, by --live or
--handlers; handlers that would change, by --against; overhead below what was measured,
by --handlers or --measurements. Warnings only fail the command with --strict.`,
		Example: "  kubectl berth lint classes.yaml --live\n  kubectl get runtimeclass -o yaml >now.yaml && kubectl berth lint next.yaml --against now.yaml",
		Args:    cobra.MinimumNArgs(1),
	}
	f.handlersFlags(c, "that exist")
	c.Flags().BoolVar(&f.live, "live", false, "use the handlers of the cluster")
	c.Flags().StringArrayVar(&f.against, "against", nil, "`FILE` of the classes that the cluster has; may be repeated")
	c.Flags().BoolVar(&f.strict, "strict", false, "fail on warnings")
	output.Flag(c, &f.output, misused, output.Forms...)
	return p.does(c, f, (*classWork).lint)
}

func (p *fileCommands) migrateCommand() *cobra.Command {
	f := &classFlags{}
	c := &cobra.Command{
		Use:   "migrate FILE...",
		Short: "Rewrite RuntimeClasses of old versions to node.k8s.io/v1",
		Long: `Rewrite RuntimeClasses of v1beta1 and v1alpha1 to node.k8s.io/v1, and print the file.
Comments and order are kept. Handlers that v1 does not allow (empty ones and those with
dots) need a new name by --handler; without one nothing is written.`,
		Example: "  kubectl berth migrate old.yaml >new.yaml\n  kubectl berth migrate --write *.yaml --handler kata.v2=kata-v2 --handler =runc",
		Args:    cobra.MinimumNArgs(1),
	}
	c.Flags().StringArrayVar(&f.rename, "handler", nil, "`OLD=NEW` name of a handler; OLD may be empty; may be repeated")
	c.Flags().BoolVarP(&f.write, "write", "w", false, "write the files instead of printing; all of them or none")
	return p.does(c, f, (*classWork).migrate)
}
