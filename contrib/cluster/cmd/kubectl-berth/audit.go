package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
)

type auditFlags struct {
	strict bool
	output string
}

// auditCommand is "audit".
type auditCommand struct{ *program }

func (p *auditCommand) command() *cobra.Command {
	f := &auditFlags{}
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
		RunE:    func(c *cobra.Command, _ []string) error { return p.audit(c.Context(), f) },
	}
	c.Flags().BoolVar(&f.strict, "strict", false, "fail on warnings")
	output.Flag(c, &f.output, "lines", "json", "yaml")
	return c
}

// audited is what audit prints.
type audited struct {
	Nodes    int               `json:"nodes"`
	Classes  int               `json:"classes"`
	Errors   int               `json:"errors"`
	Warnings int               `json:"warnings"`
	Findings []cluster.Finding `json:"findings"`
}

func (p *auditCommand) audit(ctx context.Context, f *auditFlags) error {
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
	var b strings.Builder
	for _, one := range a.Findings {
		fmt.Fprintln(&b, one)
		if one.Severity == runtimeclass.Error {
			a.Errors++
		} else {
			a.Warnings++
		}
	}
	if err := output.Encode(p.Out, f.output, a, func(w io.Writer) error {
		_, err := io.WriteString(w, b.String())
		return err
	}); err != nil {
		return err
	}
	if a.Errors > 0 || f.strict && a.Warnings > 0 {
		return found("%s and %s in %s and %s", output.Count(a.Errors, "error", "errors"), output.Count(a.Warnings, "warning", "warnings"),
			output.Count(a.Classes, "RuntimeClass", "RuntimeClasses"), output.Count(a.Nodes, "node", "nodes"))
	}
	return nil
}
