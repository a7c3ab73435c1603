package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/nodelabel"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

type fitCommand struct {
	*program
	files, classFiles []string
	list, output      string
	tables            output.TableFlags
}

func (p *fitCommand) command() *cobra.Command {
	c := &cobra.Command{
		Use:   "fit (-f FILE... [--handlers FILE [--classes FILE]] | [TYPE/]NAME...)",
		Short: "Show the classes and nodes that can run pods, and why others cannot",
		Long: `Show the cluster's classes and nodes that can run pods, and why others cannot. Pods come
from files (-f) or from the cluster: pod/NAME, deploy/NAME and other workloads, or a pod's
name alone. Each class is checked with the pod as admission changes it for this class. In a
pod of the cluster, the changes for its own class are undone first. A node can run the pod
if it is ready and not cordoned, if the pod selects and tolerates it, and if it has the
handler, capabilities and resources that the pod needs. The usage of nodes is ignored.
Capabilities come from annotations of classes and the status of nodes.

With --handlers, pods in files are checked against these handlers and the classes in files,
without the cluster. The exit status is 3 if a pod cannot run with its class or, if it has
none, with any handler.`,
		Example: `  kubectl berth fit deploy/web -n shop
  kubectl berth fit -f pod.yaml --handlers handlers.json --classes classes.yaml
  kubectl berth fit web-0 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case len(p.files) > 0 && len(args) > 0:
				return commandline.Misused(c, errors.New("use -f or TYPE/NAME, not both"))
			case len(p.files) == 0 && len(args) == 0:
				return commandline.Misused(c, errors.New("no pods given: use -f, or TYPE/NAME"))
			case p.list != "" && len(args) > 0:
				return commandline.Misused(c, errors.New("--handlers does not use the cluster: it needs -f"))
			case p.list == "" && len(p.classFiles) > 0:
				return commandline.Misused(c, errors.New("--classes needs --handlers"))
			}
			return p.fit(c.Context(), args)
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"pod/", "deploy/", "statefulset/", "daemonset/", "job/", "cronjob/"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
	}
	c.Flags().StringSliceVarP(&p.files, "filename", "f", nil, "`FILE` of pods or workloads, or - for standard input; may be repeated")
	c.Flags().StringVar(&p.list, "handlers", "", "names separated by commas, or a `FILE` of handlers with their capabilities, instead of the cluster")
	c.Flags().StringSliceVar(&p.classFiles, "classes", nil, "with --handlers, `FILE` of classes beside those in -f; may be repeated")
	output.Flag(c, &p.output, output.Forms...)
	p.tables.NoHeadersFlag(c)
	return c
}

// fitted is the output for one pod.
type fitted struct {
	Pod   string `json:"pod"`
	Where string `json:"where"`
	// Fits is the answer for the class that the pod names; if the pod names no class, it is the
	// best answer of all candidates.
	Fits       capability.Answer          `json:"fits"`
	Needs      []runtimeclass.Requirement `json:"needs"`
	Candidates []cluster.Candidate        `json:"candidates"`
}

func (p *fitCommand) fit(ctx context.Context, args []string) error {
	state, o, objects, err := p.given(ctx, args)
	if err != nil {
		return err
	}
	all, without := []fitted{}, 0
	for _, of := range objects {
		if of.Pod == nil {
			continue
		}
		// Admission changes pods, but not the templates of workloads.
		o.Admitted = len(args) > 0 && of.Kind == "Pod"
		one := fitted{Pod: of.Pod.Owner, Where: of.Pod.Where(""), Needs: runtimeclass.Requirements(of.Pod.Pod), Candidates: cluster.Fit(of.Pod.Pod, state, o)}
		if one.Needs == nil {
			one.Needs = []runtimeclass.Requirement{}
		}
		own := max(0, slices.IndexFunc(one.Candidates, func(c cluster.Candidate) bool { return c.Own && c.Class != "" }))
		if one.Fits = one.Candidates[own].Fits; one.Fits == capability.No {
			without++
		}
		all = append(all, one)
	}
	if err := output.Encode(p.Out, p.output, map[string]any{"pods": all}, p.tables.Table(fitTable(all, p.output == "wide"))); err != nil {
		return err
	}
	if without > 0 {
		return commandline.Found("%s of %d cannot run as written", output.Count(without, "pod", "pods"), len(all))
	}
	return nil
}

// given returns the objects of files or of the cluster, and the state to check them against.
func (p *fitCommand) given(ctx context.Context, args []string) (state *cluster.State, o cluster.FitOptions, objects []runtimeclass.Object, err error) {
	if objects, err = p.objects(p.files); err != nil {
		return nil, o, nil, err
	}
	if p.list != "" {
		classes, err := p.classes(p.classFiles)
		if err != nil {
			return nil, o, nil, err
		}
		state = &cluster.State{}
		for _, c := range append(runtimeclass.Classes(objects), classes...) {
			state.Classes = append(state.Classes, *c.RuntimeClass)
		}
		objects = slices.DeleteFunc(objects, isClass)
		if o.Handlers, err = p.handlers(p.list); err != nil {
			return nil, o, nil, err
		}
	}
	if len(p.files) > 0 {
		if err := p.want(objects, p.files, "pod", isPod); err != nil {
			return nil, o, nil, err
		}
	}
	if p.list != "" {
		return state, o, objects, nil
	}
	s, err := p.connect()
	if err != nil {
		return nil, o, nil, err
	}
	if len(args) > 0 {
		if objects, err = p.fetch(ctx, s, args); err != nil {
			return nil, o, nil, err
		}
	}
	state, err = s.state(ctx)
	return state, o, objects, err
}

// fetch reads the named objects from the cluster, as kubectl would.
func (p *fitCommand) fetch(ctx context.Context, s *server, args []string) ([]runtimeclass.Object, error) {
	namespace, _, err := p.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, commandline.Wrong(err)
	}
	// A single name, or one beside TYPE/NAME, is a pod. Otherwise the first argument is a type.
	typed := slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, "/") })
	args = slices.Clone(args)
	for i := range args {
		if !strings.Contains(args[i], "/") && (typed || len(args) == 1) {
			args[i] = "pod/" + args[i]
		}
	}
	infos, err := resource.NewBuilder(p.config).Unstructured().NamespaceParam(namespace).DefaultNamespace().
		ResourceTypeOrNameArgs(false, args...).RequestChunksOf(pageSize).ContinueOnError().Flatten().Do().Infos()
	if err != nil {
		if resource.IsUsageError(err) {
			return nil, commandline.Wrong(err)
		}
		return nil, s.explain("get", strings.Join(args, " "), err)
	}
	var all []runtimeclass.Object
	for _, info := range infos {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		body, err := json.Marshal(info.Object)
		if err != nil {
			return nil, err
		}
		o, err := runtimeclass.Read(info.ObjectName(), body)
		if err != nil {
			return nil, err
		}
		if o.Pod == nil {
			return nil, commandline.Wrong(fmt.Errorf("%s has no pods", o))
		}
		all = append(all, o)
	}
	return all, nil
}

func fitTable(all []fitted, wide bool) *output.Table {
	t := &output.Table{Header: []string{"POD", "CLASS", "HANDLER", "FITS", "ISOLATION", "OVERHEAD", "NODES", "REASON"}, Whole: wide}
	for _, f := range all {
		for _, c := range f.Candidates {
			class, handler := or(c.Class), cmp.Or(c.Handler, "default")
			if c.Own {
				class += " (current)"
			}
			nodes := c.Nodes
			if c.Fits == capability.Unknown {
				nodes = c.MaybeNodes
			}
			names := runtimeclass.Few(nodes)
			if wide {
				names = strings.Join(nodes, ", ")
			}
			t.Add(f.Pod, class, handler, string(c.Fits), or(string(c.Isolation)), or(costs(c.Overhead)), or(names), or(c.Why()))
		}
	}
	return t
}

// costs formats resources, without those that count pods.
func costs(l corev1.ResourceList) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		if q := l[name]; !nodelabel.IsPods(string(name)) {
			all = append(all, fmt.Sprintf("%s=%s", name, q.String()))
		}
	}
	return strings.Join(all, ",")
}

func or(s string) string { return cmp.Or(s, "-") }
