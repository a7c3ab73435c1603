package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-cri/berth/cmd/internal/manifests"
	"github.com/berth-cri/berth/cmd/internal/output"
	"github.com/berth-cri/berth/pkg/cluster"
	"github.com/berth-cri/berth/pkg/runtimeclass"
)

// fieldManager owns the fields that are applied.
const fieldManager = "kubectl-berth"

type applyFlags struct {
	files        []string
	handlers     string
	fromNodes    bool
	measurements string
	tolerations  []string
	anyNode      bool
	noCapacity   bool

	diff    bool
	dryRun  string
	force   bool
	manager string
	output  string
}

// applyCommand is "apply".
type applyCommand struct{ *program }

func (p *applyCommand) command() *cobra.Command {
	f := &applyFlags{}
	c := &cobra.Command{
		Use:   "apply (-f FILE... | --from-nodes [HANDLER]... | --handlers FILE [HANDLER]...)",
		Short: "Apply RuntimeClasses, all of them or none",
		Long: `Apply RuntimeClasses by server-side apply: those in files, or one for each handler that
the nodes of the cluster report (--from-nodes) or that a list contains (--handlers), as
"kubectl berth generate" creates them.

All of them are first sent as a dry run. If the server rejects one, or one would change
the handler of a class, which is immutable, nothing is applied. If applying fails later,
the classes applied before are rolled back, and the result for each class is printed.

With --diff nothing is applied; the exit status is 0 without differences, 1 with some,
2 on failure. The diff program is $KUBECTL_EXTERNAL_DIFF, or "diff -u -N".`,
		Example: `  # Classes of files, first shown and then applied
  kubectl berth apply -f classes.yaml --diff
  kubectl berth apply -f classes.yaml

  # From handlers.json, which "berth capabilities -o json" has written on a node
  kubectl berth apply --handlers handlers.json

  # A class for each handler that nodes report, with measured overhead
  kubectl berth apply --from-nodes --measurements overhead.yaml --dry-run=server`,
		RunE: func(c *cobra.Command, args []string) error {
			err := p.apply(c, f, args)
			if f.diff && err != nil && !errors.Is(err, errDiffers) {
				return wrong(err) // as "kubectl diff" ends: 1 is for differences
			}
			return err
		},
		ValidArgsFunction: p.completeHandlers,
	}
	flags := c.Flags()
	flags.StringSliceVarP(&f.files, "filename", "f", nil, "`FILE` of classes, or - for standard input; may be repeated")
	flags.BoolVar(&f.fromNodes, "from-nodes", false, "generate a class for each handler that a node of the cluster reports, or for the named ones")
	flags.StringVar(&f.handlers, "handlers", "", "generate a class for each of these: names separated by commas, or a `FILE` of handlers")
	flags.StringVar(&f.measurements, "measurements", "", "`FILE` of handlers with measured overhead, for generated classes")
	flags.StringArrayVar(&f.tolerations, "toleration", nil, "`KEY[=VALUE][:EFFECT]` of taints that pods of generated classes tolerate; may be repeated")
	flags.BoolVar(&f.anyNode, "any-node", false, "generate classes that do not select nodes")
	flags.BoolVar(&f.noCapacity, "no-capacity", false, noCapacityHelp)
	flags.BoolVar(&f.diff, "diff", false, "show what would change without applying it")
	flags.StringVar(&f.dryRun, "dry-run", dryRunNone, `"none", "client" to print the classes without sending them, or "server" to send them without keeping them`)
	flags.BoolVar(&f.force, "force-conflicts", false, "take over fields that other managers own")
	flags.StringVar(&f.manager, "field-manager", fieldManager, "name of the manager that owns the fields")
	output.Flag(c, &f.output, misused, "lines", "name", "json", "yaml")
	completes(c, "dry-run", cobra.FixedCompletions([]string{dryRunNone, dryRunClient, dryRunServer}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// Values of --dry-run.
const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

func (f *applyFlags) check(args []string) error {
	sources := 0
	for _, given := range []bool{len(f.files) > 0, f.fromNodes, f.handlers != ""} {
		if given {
			sources++
		}
	}
	switch {
	case sources != 1:
		return errors.New("use one of -f, --from-nodes and --handlers")
	case len(f.files) > 0 && len(args) > 0:
		return fmt.Errorf("unexpected argument %q: -f applies all classes of the files", args[0])
	case len(f.files) > 0 && (f.anyNode || f.noCapacity || f.measurements != "" || len(f.tolerations) > 0):
		return errors.New("--any-node, --no-capacity, --measurements and --toleration are for generated classes, and cannot be combined with -f")
	case !slices.Contains([]string{dryRunNone, dryRunClient, dryRunServer}, f.dryRun):
		return fmt.Errorf("--dry-run=%s must be none, client or server", f.dryRun)
	case f.diff && f.dryRun != dryRunNone:
		return errors.New("--diff applies nothing; it cannot be combined with --dry-run")
	case f.manager == "":
		return errors.New("--field-manager is empty")
	}
	return nil
}

func (p *applyCommand) apply(c *cobra.Command, f *applyFlags, args []string) error {
	if err := f.check(args); err != nil {
		return misused(c, err)
	}
	ctx := c.Context()
	// Without a server nothing but what was given is looked at.
	var s *server
	if f.dryRun != dryRunClient || f.fromNodes {
		var err error
		if s, err = p.connect(); err != nil {
			return err
		}
	}
	classes, err := p.classesToApply(ctx, s, f, args)
	if err != nil {
		return err
	}
	if f.dryRun == dryRunClient {
		if f.fromNodes {
			// An apply keeps what these say of handlers.
			before, err := s.runtimeClasses(ctx)
			if err != nil {
				return err
			}
			p.keep(classes, before)
		}
		if err := p.refuse(classes, nil); err != nil {
			return err
		}
		all, err := changes(classes, nil)
		if err != nil {
			return err
		}
		for i := range all {
			all[i].after, all[i].effect = all[i].object, "would be applied"
		}
		return p.printChanges(f, all)
	}
	return p.applyTo(ctx, s, f, classes)
}

// applyTo shows or applies classes that can be applied, as far as is known without
// sending them.
func (p *applyCommand) applyTo(ctx context.Context, s *server, f *applyFlags, classes []runtimeclass.Class) error {
	before, err := s.runtimeClasses(ctx)
	if err != nil {
		return fmt.Errorf("nothing was applied: %w", err)
	}
	if len(f.files) == 0 {
		p.keep(classes, before)
	}
	if err := p.refuse(classes, before); err != nil {
		return err
	}
	a := &applier{server: s, manager: f.manager, force: f.force, advice: "remove these fields, or take them over"}
	all, err := changes(classes, before)
	if err != nil {
		return err
	}
	if err := a.try(ctx, all); err != nil {
		return err
	}
	switch {
	case f.diff:
		return p.showDiff(ctx, all)
	case f.dryRun == dryRunServer:
		return p.printChanges(f, all)
	}
	if err := a.apply(ctx, all); err != nil {
		return err
	}
	return p.printChanges(f, all)
}

// keep gives classes that were made of handlers what those that are there say and nobody has
// said otherwise of.
func (p *applyCommand) keep(classes []runtimeclass.Class, before []nodev1.RuntimeClass) {
	for _, c := range classes {
		cluster.KeepKnown(c.RuntimeClass, before)
		if kept := cluster.KeepOverhead(c.RuntimeClass, before); kept != nil {
			p.note("class %s keeps its overhead %s; --measurements would change it", c.Name, resources(kept))
		}
	}
}

// classResource is how requests call classes.
var classResource = nodev1.SchemeGroupVersion.WithResource("runtimeclasses")

// changes are those to get from the classes that there are to others.
func changes(classes []runtimeclass.Class, before []nodev1.RuntimeClass) ([]change, error) {
	var all []change
	for _, c := range classes {
		one := change{where: c.Where(""), resource: classResource}
		var err error
		if one.object, err = sentClass(c.RuntimeClass); err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(before, func(b nodev1.RuntimeClass) bool { return b.Name == c.Name }); i >= 0 {
			if one.before, err = sentClass(&before[i]); err != nil {
				return nil, err
			}
		}
		all = append(all, one)
	}
	return all, nil
}

// sentClass is a class as it is sent.
func sentClass(c *nodev1.RuntimeClass) (*unstructured.Unstructured, error) {
	c = c.DeepCopy()
	c.TypeMeta = metav1.TypeMeta{APIVersion: nodev1.SchemeGroupVersion.String(), Kind: "RuntimeClass"}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c)
	if err != nil {
		return nil, fmt.Errorf("encode RuntimeClass %q: %w", c.Name, err)
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

// shownClass is a class as kubectl shows it.
func shownClass(o *unstructured.Unstructured) (*nodev1.RuntimeClass, error) {
	c := &nodev1.RuntimeClass{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, c); err != nil {
		return nil, fmt.Errorf("decode RuntimeClass %q: %w", o.GetName(), err)
	}
	c.ManagedFields = nil
	return c, nil
}

// classesToApply are those of the files, or those that are made of handlers.
func (p *applyCommand) classesToApply(ctx context.Context, s *server, f *applyFlags, args []string) ([]runtimeclass.Class, error) {
	if len(f.files) > 0 {
		objects, err := p.files.Objects(f.files)
		if err != nil {
			return nil, wrong(err)
		}
		others, err := manifests.Others(objects, f.files, "RuntimeClass", manifests.IsClass)
		if err != nil {
			return nil, wrong(err)
		}
		for _, o := range others {
			p.note("%s is skipped", o)
		}
		return runtimeclass.Classes(objects), nil
	}
	o := runtimeclass.GenerateOptions{AnyNode: f.anyNode, NoCapacity: f.noCapacity}
	for _, text := range f.tolerations {
		t, err := runtimeclass.ParseToleration(text)
		if err != nil {
			return nil, wrong(fmt.Errorf("--toleration: %w", err))
		}
		o.Tolerations = append(o.Tolerations, t)
	}
	handlers, nodes, err := p.handlersToApply(ctx, s, f)
	if err != nil {
		return nil, err
	}
	chosen, passed, err := runtimeclass.Choose(handlers, args)
	if err != nil {
		return nil, wrong(err)
	}
	for _, h := range passed {
		p.note("handler %s is %s; no class is generated", h.Name, h.State)
	}
	var all []runtimeclass.Class
	for _, h := range chosen {
		g := runtimeclass.Generate(h, o)
		all = append(all, runtimeclass.Class{Source: runtimeclass.Source{File: "handler " + h.Name}, Version: "v1", RuntimeClass: g.RuntimeClass})
		p.note("class %s: %s", g.Name, g.Note)
		if f.fromNodes && cluster.Unlabelled(g.RuntimeClass, nodes) {
			p.note("class %s selects nodes by %s, which no node has yet: its pods stay pending until one does; --any-node omits the selector", g.Name, selector(g.Scheduling.NodeSelector))
		}
		if f.fromNodes && cluster.Uncounted(g.RuntimeClass, nodes) {
			p.note("pods of class %s are counted, and no node has their resource yet: they stay pending until berth-controller runs; --no-capacity omits it", g.Name)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no handler accepts pods; name one to generate its class anyway")
	}
	return all, nil
}

// handlersToApply are those of --handlers or of the nodes, with what was measured.
func (p *applyCommand) handlersToApply(ctx context.Context, s *server, f *applyFlags) ([]runtimeclass.Handler, []corev1.Node, error) {
	var handlers []runtimeclass.Handler
	var nodes []corev1.Node
	var err error
	if f.fromNodes {
		if nodes, err = s.nodes(ctx); err != nil {
			return nil, nil, err
		}
		if handlers = cluster.Handlers(&cluster.State{Nodes: nodes}); len(handlers) == 0 {
			return nil, nil, errors.New("no node of the cluster reports handlers, which needs Kubernetes 1.30 and a CRI daemon that supports it; use --handlers")
		}
	} else if handlers, err = p.files.Handlers(f.handlers); err != nil {
		return nil, nil, wrong(err)
	}
	if f.measurements == "" {
		return handlers, nodes, nil
	}
	measured, err := p.files.Inventory(f.measurements)
	if err != nil {
		return nil, nil, wrong(err)
	}
	return runtimeclass.WithMeasurements(handlers, measured), nodes, nil
}

// refuse tells what an API server would refuse, before it is asked.
func (p *applyCommand) refuse(classes []runtimeclass.Class, before []nodev1.RuntimeClass) error {
	var live []runtimeclass.Class
	for i := range before {
		live = append(live, runtimeclass.Class{Version: "v1", RuntimeClass: &before[i]})
	}
	errs := 0
	for _, f := range runtimeclass.Lint(classes, runtimeclass.LintOptions{Live: live}) {
		if f.Severity == runtimeclass.Error {
			errs++
			fmt.Fprintln(p.ErrOut, f)
		}
	}
	if errs > 0 {
		return fmt.Errorf("nothing was applied: the API server would reject it for %s", output.Count(errs, "reason", "reasons"))
	}
	return nil
}

// printChanges tells what was done, or the classes as they are then.
func (p *applyCommand) printChanges(f *applyFlags, all []change) error {
	suffix := map[string]string{dryRunClient: " (dry run)", dryRunServer: " (server dry run)"}[f.dryRun]
	classes := nodev1.RuntimeClassList{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClassList"}}
	var b strings.Builder
	for _, c := range all {
		shown, err := shownClass(c.after)
		if err != nil {
			return err
		}
		classes.Items = append(classes.Items, *shown)
		if f.output == "name" {
			fmt.Fprintln(&b, c.name())
		} else {
			fmt.Fprintf(&b, "%s %s%s\n", c.name(), c.effect, suffix)
		}
	}
	return output.Encode(p.Out, f.output, classes, func(w io.Writer) error {
		_, err := io.WriteString(w, b.String())
		return err
	})
}
