package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
)

type lintCommand struct {
	*program
	list, measurements string
	strict             bool
	output             string
}

func (p *lintCommand) command() *cobra.Command {
	c := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Find problems in RuntimeClasses",
		Long: `Find problems in RuntimeClasses, without a cluster: versions that are no longer served,
invalid names, and wrong node selectors. With --handlers, also find handlers that do not
exist or accept no pods. With --handlers or --measurements, also find too little overhead.
For other mistakes, use "kubectl apply --dry-run=server". Warnings fail the command only
with --strict.`,
		Example: "  kubectl berth lint classes.yaml --handlers handlers.json\n  kubectl get runtimeclass -o yaml | kubectl berth lint - --measurements overhead.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return p.lint(args) },
	}
	c.Flags().StringVar(&p.list, "handlers", "", "handlers that exist: names separated by commas, or a `FILE`")
	c.Flags().StringVar(&p.measurements, "measurements", "", "`FILE` of handlers with measured overhead")
	c.Flags().BoolVar(&p.strict, "strict", false, "fail on warnings")
	output.Flag(c, &p.output, output.Forms...)
	return c
}

type linted struct {
	Classes int `json:"classes"`
	severities
	Findings []runtimeclass.Finding `json:"findings"`
}

func (p *lintCommand) lint(files []string) error {
	o, err := p.options()
	if err != nil {
		return err
	}
	// Readable objects are checked even if others cannot be read.
	objects, mistakes := p.objects(files)
	if err := p.want(objects, files, "RuntimeClass", isClass); err != nil && mistakes == nil {
		return err
	}
	classes := runtimeclass.Classes(objects)
	l := linted{Classes: len(classes), Findings: runtimeclass.Lint(classes, o)}
	for _, one := range l.Findings {
		l.count(one.Severity)
	}
	if err := output.Encode(p.Out, p.output, l, func(to io.Writer) error { return printFindings(to, l.Findings) }); err != nil {
		return err
	}
	if slices.ContainsFunc(classes, func(c runtimeclass.Class) bool { return runtimeclass.Counted(c.RuntimeClass) }) {
		p.note("pods of classes with a resource handler.NAME.pods stay pending unless berth-controller runs; \"kubectl berth audit\" shows whether nodes have it")
	}
	if mistakes != nil {
		return mistakes
	}
	return l.verdict(p.strict, output.Count(l.Classes, "RuntimeClass", "RuntimeClasses"))
}

func (p *lintCommand) options() (o runtimeclass.LintOptions, err error) {
	switch {
	case p.list != "":
		if o.Handlers, err = p.handlers(p.list); err == nil {
			o.Handlers, err = p.measured(o.Handlers, p.measurements)
		}
	case p.measurements != "":
		o.MeasuredOnly = true
		o.Handlers, err = p.inventory(p.measurements)
	}
	return o, err
}

type severities struct {
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
}

func (s *severities) count(of runtimeclass.Severity) {
	if of == runtimeclass.Error {
		s.Errors++
	} else {
		s.Warnings++
	}
}

// verdict returns an error if there are errors or, with strict, warnings.
func (s *severities) verdict(strict bool, in string) error {
	if s.Errors == 0 && (!strict || s.Warnings == 0) {
		return nil
	}
	return commandline.Found("%s and %s in %s", output.Count(s.Errors, "error", "errors"), output.Count(s.Warnings, "warning", "warnings"), in)
}

// printFindings prints one line for each finding: findings are too long for a table.
func printFindings[F fmt.Stringer](to io.Writer, all []F) error {
	for _, one := range all {
		if _, err := fmt.Fprintln(to, one); err != nil {
			return err
		}
	}
	return nil
}

type auditCommand struct {
	*program
	strict bool
	output string
}

func (p *auditCommand) command() *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Find classes without nodes, handlers without classes, and pods waiting for a handler",
		Long: `Find mismatches between the nodes, RuntimeClasses and pods of a cluster: classes that
select nodes without their handler, handlers without a class, handlers that accept no
pods, nodes that have a handler but are not selected by the handler's classes, pods that
are pending because a handler or class is missing, and nodes where a restart of the
kubelet would end pods. With -n, only pods of this namespace are checked. Warnings fail
the command only with --strict.`,
		Example: "  kubectl berth audit\n  kubectl berth audit -n web --strict -o json",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return p.audit(c.Context()) },
	}
	c.Flags().BoolVar(&p.strict, "strict", false, "fail on warnings")
	output.Flag(c, &p.output, output.Forms...)
	return c
}

type audited struct {
	Nodes   int `json:"nodes"`
	Classes int `json:"classes"`
	severities
	Findings []cluster.Finding `json:"findings"`
}

func (p *auditCommand) audit(ctx context.Context) error {
	s, err := p.connect()
	if err != nil {
		return err
	}
	if namespace := *p.config.Namespace; namespace != "" {
		// Other errors are ignored: a user may have the right to read only the pods.
		if _, err := s.core.Namespaces().Get(ctx, namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return fmt.Errorf("namespace %q does not exist", namespace)
		}
	}
	state, err := s.stateWithPods(ctx, *p.config.Namespace)
	if err != nil {
		return err
	}
	a := audited{Nodes: len(state.Nodes), Classes: len(state.Classes), Findings: cluster.Audit(state)}
	for _, one := range a.Findings {
		a.count(one.Severity)
	}
	if err := output.Encode(p.Out, p.output, a, func(to io.Writer) error { return printFindings(to, a.Findings) }); err != nil {
		return err
	}
	return a.verdict(p.strict, output.Count(a.Classes, "RuntimeClass", "RuntimeClasses")+" and "+output.Count(a.Nodes, "node", "nodes"))
}
