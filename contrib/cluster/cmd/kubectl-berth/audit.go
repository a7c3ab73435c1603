package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/policy"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
)

type auditFlags struct {
	measurements []string
	strict       bool
	output       string
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
a handler is missing, nodes whose kubelet would end pods if it were restarted now, admission
policies that give pods a class that was deleted, and,
with --measurements, overhead below what was measured. Pods are those of all namespaces,
or of -n. Warnings only fail the command with --strict.`,
		Example: `  kubectl berth audit
  kubectl berth audit -n web --strict -o json
  kubectl berth audit --measurements overhead.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return p.audit(c.Context(), f) },
	}
	c.Flags().StringArrayVar(&f.measurements, "measurements", nil, "`FILE` of handlers with measured overhead; may be repeated")
	c.Flags().BoolVar(&f.strict, "strict", false, "fail on warnings")
	output.Flag(c, &f.output, misused, "lines", "json", "yaml")
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
	var o cluster.AuditOptions
	for _, file := range f.measurements {
		handlers, err := p.files.Inventory(file)
		if err != nil {
			return wrong(err)
		}
		o.Measured = append(o.Measured, cluster.Measured{File: file, Handlers: handlers})
	}
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
	switch ofAll := strings.Contains(fmt.Sprint(err), " -A\""); {
	case err != nil && ofAll:
		return fmt.Errorf("%w; or look at one namespace by -n", err)
	case err != nil:
		return err
	}
	policies, err := s.policies(ctx)
	switch {
	case apierrors.IsForbidden(err):
		p.note("admission policies are not checked: %v", err)
	case err != nil:
		return err
	}
	state.Policies = inForce(policies)
	a := audited{Nodes: len(state.Nodes), Classes: len(state.Classes), Findings: cluster.Audit(state, o)}
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

// policyKinds are the kinds of policies and their bindings, bindings first.
var policyKinds = []string{"mutatingadmissionpolicybindings", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "validatingadmissionpolicies"}

// policies are policies and bindings with the label of this command, in the order of their kinds.
func (s *server) policies(ctx context.Context) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	var reads []func() error
	for _, kind := range policyKinds {
		resource := admissionv1.SchemeGroupVersion.WithResource(kind)
		reads = append(reads, func() error {
			there, err := s.objects.Resource(resource).List(ctx, metav1.ListOptions{LabelSelector: policy.ManagedByLabel + "=" + policy.ManagedBy})
			switch {
			case err == nil:
				all = append(all, there.Items...)
			case apierrors.IsNotFound(err): // a server without the kind has none of them
			default:
				return s.explain("list", resource.GroupResource().String(), err)
			}
			return nil
		})
	}
	return all, each(reads...)
}

// inForce are the policies that have a binding.
func inForce(all []unstructured.Unstructured) []cluster.Policy {
	bound := map[string]bool{}
	var found []cluster.Policy
	for i := range all { // bindings come first
		o := &all[i]
		if kind, binding := strings.CutSuffix(o.GetKind(), "Binding"); binding {
			name, _, _ := unstructured.NestedString(o.Object, "spec", "policyName")
			bound[kind+"/"+name] = true
			continue
		}
		if bound[o.GetKind()+"/"+o.GetName()] {
			one := cluster.Policy{Kind: o.GetKind(), Name: o.GetName()}
			one.Classes = policy.ParseNamed(o.GetAnnotations()[policy.ClassesAnnotation])
			found = append(found, one)
		}
	}
	return found
}
