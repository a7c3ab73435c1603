package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-cri/berth/contrib/cluster/pkg/policy"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
)

type policyCommand struct {
	*program
	list       string
	classFiles []string
	standard   string
	rules      string
	workloads  string
	exempt     namespaces
	state      bool
	output     string
}

func (p *policyCommand) command() *cobra.Command {
	p.exempt = slices.Clone(policy.System)
	c := &cobra.Command{
		Use:   "policy",
		Short: "Generate admission policies that refuse pods no handler can run, and choose classes",
		Long: `Generate admission policies, which the API server evaluates by itself (Kubernetes 1.36). A
ValidatingAdmissionPolicy refuses a pod if the handler of the pod's class cannot run the
pod. The error has the same reasons as "fit", and names the classes that can run the pod. If
it is unknown whether the handler can run a pod, the pod only causes a warning. A workload
causes a warning if its pods would be refused.

With --rules, a MutatingAdmissionPolicy gives a class to pods without a class. The rules
depend on the namespace, the labels and the needs of a pod.

The policies use the capabilities in the annotations of the cluster's classes, or of the
classes in --classes. For a handler in --handlers, they use the capabilities in that file.
The end of the output has the bindings, which put the policies in force. Generate the
policies again when classes or handlers change.`,
		Example: `  # Show what the policies for the classes of the cluster would change, and apply them
  kubectl berth policy --rules rules.yaml | kubectl diff --server-side -f -
  kubectl berth policy --rules rules.yaml | kubectl apply --server-side -f -

  # Without a cluster, from the output of "berth capabilities -o json" on a node
  kubectl berth policy --classes classes.yaml --handlers handlers.json >policies.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := p.check(); err != nil {
				return commandline.Misused(c, err)
			}
			return p.policy(c.Context())
		},
	}
	flags := c.Flags()
	flags.StringVar(&p.list, "handlers", "", "`FILE` of handlers with their capabilities, instead of the annotations of their classes")
	flags.StringArrayVar(&p.classFiles, "classes", nil, "`FILE` of classes, instead of the cluster's classes; may be repeated")
	flags.StringVar(&p.standard, "default", "", "`HANDLER` of pods without a class, on all nodes; without the flag, such pods cause warnings at most")
	flags.StringVar(&p.rules, "rules", "", "`FILE` of rules that give a class to pods without one")
	flags.StringVar(&p.workloads, "workloads", string(policy.WarnWorkloads), `"warn" about workloads whose pods would be refused, "deny" or "ignore" them`)
	flags.Var(&p.exempt, "exempt", "another `NAMESPACE` whose pods are not checked; may be repeated; an empty value removes the default namespaces and all earlier values")
	flags.BoolVar(&p.state, "with-state", false, "with --handlers: refuse pods if their handler accepts no pods according to that file; rules do not choose such handlers")
	output.Flag(c, &p.output, "yaml", "json")
	completes(c, "workloads", cobra.FixedCompletions([]string{string(policy.WarnWorkloads), string(policy.DenyWorkloads), string(policy.IgnoreWorkloads)}, cobra.ShellCompDirectiveNoFileComp))
	completes(c, "exempt", p.completeNames(namespaceNames))
	return c
}

// namespaces is a flag: it adds its values to the default ones; an empty value removes all.
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

func (p *policyCommand) check() error {
	if !slices.Contains(policy.Answers, policy.Answer(p.workloads)) {
		return fmt.Errorf("--workloads %s must be %s, %s or %s", p.workloads, policy.WarnWorkloads, policy.DenyWorkloads, policy.IgnoreWorkloads)
	}
	if p.state && p.list == "" {
		return errors.New("--with-state needs --handlers: a class does not have the state of its handler")
	}
	for _, name := range p.exempt {
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			return fmt.Errorf("--exempt: %q is not a name of a namespace: %s", name, strings.Join(errs, "; "))
		}
	}
	return nil
}

func (p *policyCommand) policy(ctx context.Context) error {
	o := policy.Options{Default: p.standard, State: p.state, Workloads: policy.Answer(p.workloads), Exempt: p.exempt}
	if err := p.policyFiles(&o); err != nil {
		return err
	}
	if len(p.classFiles) == 0 {
		s, err := p.connect()
		if err != nil {
			return err
		}
		classes, err := s.runtimeClasses(ctx)
		if err != nil {
			return err
		}
		for i := range classes {
			c := runtimeclass.Class{Source: runtimeclass.Source{File: "the cluster"}, Version: "v1", RuntimeClass: &classes[i]}
			// One invalid class must not prevent the policies for all others.
			if _, err := c.Annotated(); err != nil {
				p.note("%v; its annotations are ignored: generate the class again, or remove them", err)
				for _, key := range runtimeclass.Annotations {
					delete(c.Annotations, key)
				}
			}
			o.Classes = append(o.Classes, c)
		}
	}
	objects, err := policy.Generate(o)
	if err != nil {
		return commandline.Wrong(err)
	}
	all, err := policy.Unstructured(objects)
	if err != nil {
		return err
	}
	for _, note := range policy.Notes(o) {
		p.note("%s", note)
	}
	return printObjects(p.program, p.output, all, nil)
}

func (p *policyCommand) policyFiles(o *policy.Options) (err error) {
	if p.list != "" {
		if o.Handlers, err = p.inventory(p.list); err != nil {
			return err
		}
	}
	if p.rules != "" {
		name, text, err := p.text(p.rules)
		if err == nil {
			o.Rules, err = policy.ParseRules(name, text)
		}
		if err != nil {
			return commandline.Wrong(err)
		}
	}
	o.Classes, err = p.classes(p.classFiles)
	return err
}
