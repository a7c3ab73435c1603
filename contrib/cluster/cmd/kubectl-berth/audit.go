package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/internal/output"
)

type auditCommand struct {
	*program
	strict bool
	output string
}

func (p *auditCommand) command() *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Find classes without nodes, handlers without classes, and pods waiting for a handler",
		Long: `Find mismatches between the nodes, RuntimeClasses and pods of a cluster: classes whose
handler is missing on all nodes they select, handlers that no class uses, nodes with a
handler that no class selects, labels of missing handlers, pods that are pending because
a handler is missing, and nodes whose kubelet would end pods if it were restarted now.
Pods are those of all namespaces, or of -n. Warnings only fail the command with --strict.`,
		Example: "  kubectl berth audit\n  kubectl berth audit -n web --strict -o json",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return p.audit(c.Context()) },
	}
	c.Flags().BoolVar(&p.strict, "strict", false, "fail on warnings")
	output.Flag(c, &p.output, "lines", "json", "yaml")
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
		// Who may not ask for it sees by its pods whether it is there.
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
