package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/manifests"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

type fitFlags struct {
	files    []string
	handlers string
	prefer   string
	output   string

	local        bool
	classes      []string
	measurements string
}

// fitCommand is "fit".
type fitCommand struct{ *program }

func (p *fitCommand) command() *cobra.Command {
	f := &fitFlags{}
	c := &cobra.Command{
		Use:   "fit (-f FILE... | [TYPE/]NAME... | --local FILE...)",
		Short: "Show the classes and nodes that pods can run on, and why not on others",
		Long: `Show which classes of the cluster pods can use and which of its nodes they can run on,
and why not others. Pods are those of files, or of the cluster: pod/NAME, deploy/NAME and
other workloads, or just a pod's name. For each class, the pod is checked as admission
would change it (for a pod of the cluster: as it was before its own class changed it).
For each node it is checked whether the node has the handler with what the pod needs, is
ready, and can be selected for the pod. The current usage of nodes is not considered.

Nodes report few capabilities of their handlers; a --handlers file has more. With --local,
pods come from files, handlers from --handlers and classes from --classes or the files:
only the capabilities of handlers are checked, and the cluster is not used. The exit
status is 3 if a pod cannot run anywhere.`,
		Example: `  kubectl berth fit deploy/web -n shop
  kubectl berth fit -f pod.yaml --handlers handlers.yaml
  kubectl berth fit --local pod.yaml --handlers handlers.json --classes classes.yaml
  kubectl berth fit web-0 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			if f.local && f.handlers == "" {
				return misused(c, errors.New("--local does not use the cluster; it needs --handlers"))
			}
			if !f.local && (len(f.classes) > 0 || f.measurements != "") {
				return misused(c, errors.New("--classes and --measurements need --local"))
			}
			switch {
			case len(f.files) > 0 && len(args) > 0:
				return misused(c, errors.New("use -f or TYPE/NAME, not both"))
			case len(f.files) == 0 && len(args) == 0:
				return misused(c, errors.New("no pods given: use -f, or TYPE/NAME"))
			}
			if !slices.Contains(runtimeclass.Preferences, runtimeclass.Preference(f.prefer)) {
				return misused(c, fmt.Errorf("--prefer %s must be %s or %s", f.prefer, runtimeclass.PreferIsolation, runtimeclass.PreferOverhead))
			}
			if f.local {
				w := &classWork{p.program, c.Context(), &classFlags{
					handlers: f.handlers, measurements: f.measurements, classes: f.classes, prefer: f.prefer, output: f.output,
				}, append(args, f.files...)}
				return w.fit()
			}
			return p.fit(c.Context(), f, args)
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"pod/", "deploy/", "statefulset/", "daemonset/", "job/", "cronjob/"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
	}
	c.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "`FILE` of pods or workloads, or - for standard input; may be repeated")
	c.Flags().StringVar(&f.handlers, "handlers", "", "`FILE` of handlers with their capabilities; with --local also names separated by commas")
	c.Flags().BoolVar(&f.local, "local", false, "do not use the cluster: the arguments are files")
	c.Flags().StringArrayVar(&f.classes, "classes", nil, "with --local, `FILE` of classes; may be repeated")
	c.Flags().StringVar(&f.measurements, "measurements", "", "with --local, `FILE` of handlers with measured overhead")
	c.Flags().StringVar(&f.prefer, "prefer", string(runtimeclass.PreferIsolation), "sort by the strongest isolation, or by the least overhead")
	output.Flag(c, &f.output, misused, output.Forms...)
	return c
}

// fitted is what fit prints of a pod.
type fitted struct {
	Pod   string `json:"pod"`
	Where string `json:"where"`
	// Fits is the best of all candidates.
	Fits       capability.Answer          `json:"fits"`
	Needs      []runtimeclass.Requirement `json:"needs"`
	Candidates []cluster.Candidate        `json:"candidates"`
}

func (p *fitCommand) fit(ctx context.Context, f *fitFlags, args []string) error {
	o := cluster.FitOptions{Prefer: runtimeclass.Preference(f.prefer)}
	if f.handlers != "" {
		var err error
		if o.Handlers, err = p.files.Inventory(f.handlers); err != nil {
			return wrong(err)
		}
	}
	var objects []runtimeclass.Object
	var err error
	if len(f.files) > 0 {
		if objects, err = p.files.Objects(f.files); err != nil {
			return wrong(err)
		}
		others, err := manifests.Others(objects, f.files, "pod", manifests.IsPod)
		if err != nil {
			return wrong(err)
		}
		for _, one := range others {
			p.note("%s is skipped", one)
		}
	}
	s, err := p.connect()
	if err != nil {
		return err
	}
	if len(args) > 0 {
		if objects, err = p.fetch(ctx, s, args); err != nil {
			return err
		}
	}
	state, err := s.state(ctx)
	if err != nil {
		return err
	}
	all, without := []fitted{}, 0
	for _, of := range objects {
		if of.Pod == nil {
			continue
		}
		pod := *of.Pod
		// What a workload makes pods of is as somebody wrote it, in the cluster, too.
		o.Admitted = len(args) > 0 && of.Kind == "Pod"
		one := fitted{Pod: pod.Owner, Where: pod.Where(""), Needs: runtimeclass.Requirements(pod.Pod), Candidates: cluster.Fit(pod.Pod, state, o)}
		if one.Needs == nil {
			one.Needs = []runtimeclass.Requirement{}
		}
		if one.Fits = one.Candidates[0].Fits; one.Fits == capability.No {
			without++
		}
		all = append(all, one)
	}
	if err := output.Encode(p.Out, f.output, map[string]any{"pods": all}, func(w io.Writer) error { return fitTable(all, f.output == "wide").Write(w) }); err != nil {
		return err
	}
	if without > 0 {
		return found("%s of %d cannot run anywhere", output.Count(without, "pod", "pods"), len(all))
	}
	return nil
}

// fetch gets what is named from the cluster, as kubectl would.
func (p *fitCommand) fetch(ctx context.Context, s *server, args []string) ([]runtimeclass.Object, error) {
	namespace, _, err := p.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, wrong(err)
	}
	// A name alone is that of a pod.
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
			return nil, wrong(err)
		}
		return nil, s.explain("get", strings.Join(args, " "), err)
	}
	var all []runtimeclass.Object
	for _, info := range infos {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		o, err := objectOf(info.Object, info.ObjectName())
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// objectOf reads a pod, or what makes pods.
func objectOf(from runtime.Object, name string) (runtimeclass.Object, error) {
	body, err := json.Marshal(from)
	if err != nil {
		return runtimeclass.Object{}, err
	}
	o, err := runtimeclass.Read(name, body)
	if err == nil && o.Pod == nil {
		err = wrong(fmt.Errorf("%s has no pods", o))
	}
	return o, err
}

func fitTable(all []fitted, wide bool) *output.Table {
	t := &output.Table{Header: []string{"POD", "CLASS", "HANDLER", "FITS", "ISOLATION", "OVERHEAD", "NODES", "REASON"}, Whole: wide}
	for _, f := range all {
		for _, c := range f.Candidates {
			class, handler := c.Class, c.Handler
			if class == "" {
				class = "-"
			}
			if handler == "" {
				handler = "default"
			}
			if c.Own {
				class += " (its own)"
			}
			nodes := c.Nodes
			if c.Fits == capability.Unknown {
				nodes = c.MaybeNodes
			}
			names := cluster.Few(nodes)
			if wide {
				names = strings.Join(nodes, ", ")
			}
			t.Add(f.Pod, class, handler, string(c.Fits), or(string(c.Isolation)), or(costs(c.Overhead)), or(names), or(c.Why()))
		}
	}
	return t
}
