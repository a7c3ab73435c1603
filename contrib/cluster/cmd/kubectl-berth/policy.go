package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-cri/berth/contrib/cluster/pkg/policy"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
)

type policyFlags struct {
	handlers  string
	classes   []string
	standard  string
	rules     string
	workloads string
	exempt    namespaces
	state     bool
	output    string
}

// policyCommand is "policy".
type policyCommand struct{ *program }

func (p *policyCommand) command() *cobra.Command {
	f := &policyFlags{exempt: slices.Clone(policy.System)}
	c := &cobra.Command{
		Use:   "policy",
		Short: "Generate admission policies that refuse pods no handler can run, and choose classes",
		Long: `Generate admission policies, which the API server evaluates by itself (Kubernetes 1.36):
a ValidatingAdmissionPolicy refuses a pod if the handler of its class cannot run it, for
the reasons that "fit" shows, and names the classes that can. Pods of which it is not
known cause a warning, and workloads whose pods would be refused do, too.

With --rules, a MutatingAdmissionPolicy gives pods without a class one, by rules on the
namespace, the labels and the needs of the pod.

What handlers can do comes from the annotations of the cluster's classes, or of --classes;
--handlers has it for the handlers in the list. The policies are printed, and after them
their bindings, which put them in force. Generate them again when classes or handlers change.`,
		Example: `  # Show what the policies for the classes of the cluster would change, and apply them
  kubectl berth policy --rules rules.yaml | kubectl diff --server-side -f -
  kubectl berth policy --rules rules.yaml | kubectl apply --server-side -f -

  # Without a cluster, from the list that "berth capabilities -o json" has written on a node
  kubectl berth policy --classes classes.yaml --handlers handlers.json >policies.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return misused(c, err)
			}
			return p.policy(c.Context(), f)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.handlers, "handlers", "", "`FILE` of handlers with their capabilities, instead of the annotations of their classes")
	flags.StringArrayVar(&f.classes, "classes", nil, "`FILE` of classes, instead of those of the cluster; may be repeated")
	flags.StringVar(&f.standard, "default", "", "`HANDLER` of pods without a class on all nodes; without it they are only warned about")
	flags.StringVar(&f.rules, "rules", "", "`FILE` of rules that give pods without a class one")
	flags.StringVar(&f.workloads, "workloads", string(policy.WarnWorkloads), `"warn" about workloads whose pods would be refused, "deny" or "ignore" them`)
	flags.Var(&f.exempt, "exempt", "`NAMESPACE` whose pods are left alone, too; may be repeated, and an empty one takes away all before it")
	flags.BoolVar(&f.state, "with-state", false, "also refuse, and do not choose, handlers that do not accept pods at the moment")
	output.Flag(c, &f.output, "yaml", "json")
	completes(c, "workloads", cobra.FixedCompletions([]string{string(policy.WarnWorkloads), string(policy.DenyWorkloads), string(policy.IgnoreWorkloads)}, cobra.ShellCompDirectiveNoFileComp))
	completes(c, "exempt", p.completeNamespaces)
	return c
}

// namespaces is a flag that adds to what there is: who exempts a namespace of theirs has not
// forgotten those of the system.
type namespaces []string

func (n *namespaces) Set(text string) error {
	if text == "" {
		*n = nil
		return nil
	}
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(*n, name) {
			*n = append(*n, name)
		}
	}
	return nil
}

func (n *namespaces) String() string { return strings.Join(*n, ",") }

func (n *namespaces) Type() string { return "namespaces" }

func (f *policyFlags) check() error {
	if !slices.Contains(policy.Answers, policy.Answer(f.workloads)) {
		return fmt.Errorf("--workloads %s must be %s, %s or %s", f.workloads, policy.WarnWorkloads, policy.DenyWorkloads, policy.IgnoreWorkloads)
	}
	if f.state && f.handlers == "" {
		return errors.New("--with-state needs --handlers: a class does not have the state of its handler")
	}
	for _, name := range f.exempt {
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			return fmt.Errorf("--exempt: %q is not a name of a namespace: %s", name, strings.Join(errs, "; "))
		}
	}
	return nil
}

func (p *policyCommand) policy(ctx context.Context, f *policyFlags) error {
	o := policy.Options{Default: f.standard, State: f.state, Workloads: policy.Answer(f.workloads), Exempt: f.exempt}
	if err := p.policyFiles(f, &o); err != nil {
		return err
	}
	if len(f.classes) == 0 {
		s, err := p.connect()
		if err != nil {
			return err
		}
		classes, err := s.runtimeClasses(ctx)
		if err != nil {
			return err
		}
		for i := range classes {
			p.forget(&classes[i])
			o.Classes = append(o.Classes, runtimeclass.Class{Source: runtimeclass.Source{File: "the cluster"}, Version: "v1", RuntimeClass: &classes[i]})
		}
	}
	objects, err := policy.Generate(o)
	if err != nil {
		return wrong(err)
	}
	all, err := policy.Unstructured(objects)
	if err != nil {
		return err
	}
	p.notePassed(o)
	return p.printPolicies(f, all)
}

// forget takes annotations away that cannot be read, and says so: one class must not keep the
// whole cluster from having policies.
func (p *policyCommand) forget(c *nodev1.RuntimeClass) {
	one := runtimeclass.Class{Source: runtimeclass.Source{File: "the cluster"}, Version: "v1", RuntimeClass: c}
	if _, err := one.Annotated(); err != nil {
		p.note("%v; what its annotations say is left out: generate the class again, or remove them", err)
		for _, key := range runtimeclass.Annotations {
			delete(c.Annotations, key)
		}
	}
}

// policyFiles reads what is given as files.
func (p *policyCommand) policyFiles(f *policyFlags, o *policy.Options) (err error) {
	if f.handlers != "" {
		if o.Handlers, err = p.inventory(f.handlers); err != nil {
			return err
		}
	}
	if f.rules != "" {
		name, text, err := p.text(f.rules)
		if err == nil {
			o.Rules, err = policy.ParseRules(name, text)
		}
		if err != nil {
			return wrong(err)
		}
	}
	if len(f.classes) > 0 {
		o.Classes, err = p.classes(f.classes)
	}
	return err
}

// notePassed says which classes the policies know nothing of, and what they leave out.
func (p *policyCommand) notePassed(o policy.Options) {
	for _, name := range policy.Unknown(o) {
		p.note("nothing is known of class %s: its pods are not checked; generate the class again, or use --handlers", name)
	}
	if policy.DefaultUnknown(o) {
		p.note("the handler of pods without a class is not known: these pods are not checked; use --default")
	}
	for _, name := range policy.Exempted(o) {
		p.note("rule %s is for no pods: all of its namespaces are exempt", name)
	}
	for _, name := range policy.Weak(o) {
		p.note("rule %s gives pods no more than shared-kernel: no class gives vm or user-space-kernel; with least: user-space-kernel it fails instead", name)
	}
}

// printPolicies prints documents, or a list.
func (p *policyCommand) printPolicies(f *policyFlags, all []unstructured.Unstructured) error {
	if f.output == "json" {
		list := unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List"}, Items: all}
		return output.Encode(p.Out, "json", list.UnstructuredContent(), nil)
	}
	text, err := policy.YAML(all)
	if err != nil {
		return err
	}
	_, err = p.Out.Write(text)
	return err
}
