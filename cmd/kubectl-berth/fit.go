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

	"github.com/berth-cri/berth/cmd/internal/manifests"
	"github.com/berth-cri/berth/cmd/internal/output"
	"github.com/berth-cri/berth/pkg/cluster"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/runtimeclass"
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

func (p *program) fitCommand() *cobra.Command {
	f := &fitFlags{}
	c := &cobra.Command{
		Use:   "fit (-f FILE... | [TYPE/]NAME... | --local FILE...)",
		Short: "Say with which classes and on which nodes pods can run, and why not on others",
		Long: `Say with which classes of the cluster, and on which of its nodes, pods can run, and
why not with others. Pods are those of files, or of the cluster: pod/NAME, deploy/NAME
and other workloads, or just the name of a pod. Of each class it is looked at what
admission makes of the pod (as it was before it got what its own class gives, if it
is a pod of the cluster), and of each node whether it has the handler with what the
pod asks for, is ready, and is one that the pod may be put on. How full a node is at
the moment is not looked at.

Nodes tell little of what their handlers can do; --handlers has a file that says more.
With --local the pods are those of files, the handlers those of --handlers and the
classes those of --classes or of the files: what handlers can do is looked at, and no
cluster is asked. The exit status is 3 if there is a pod that can run nowhere.`,
		Example: `  kubectl berth fit deploy/web -n shop
  kubectl berth fit -f pod.yaml --handlers handlers.yaml
  kubectl berth fit --local pod.yaml --handlers handlers.json --classes classes.yaml
  kubectl berth fit web-0 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			if f.local && f.handlers == "" {
				return misused(c, errors.New("--local asks no cluster; give the handlers by --handlers"))
			}
			if !f.local && (len(f.classes) > 0 || f.measurements != "") {
				return misused(c, errors.New("--classes and --measurements are for --local; else the classes are those of the cluster"))
			}
			if (len(f.files) > 0) == (len(args) > 0) {
				return misused(c, errors.New("say which pods: by -f, or as TYPE/NAME"))
			}
			if !slices.Contains(runtimeclass.Preferences, runtimeclass.Preference(f.prefer)) {
				return misused(c, fmt.Errorf("--prefer %s is none of %s and %s", f.prefer, runtimeclass.PreferIsolation, runtimeclass.PreferOverhead))
			}
			if f.local {
				w := &classWork{p, c.Context(), &classFlags{
					handlers: f.handlers, measurements: f.measurements, classes: f.classes, prefer: f.prefer, output: f.output,
				}, append(args, f.files...)}
				return w.fit()
			}
			return p.fit(c.Context(), f, args)
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"pod/", "deploy/", "statefulset/", "daemonset/", "job/", "cronjob/"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
	}
	c.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "`FILE` of pods or workloads, or - for standard input; may be repeated")
	c.Flags().StringVar(&f.handlers, "handlers", "", "`FILE` of handlers with what they can do, as nodes do not tell it; with --local also names with commas between them")
	c.Flags().BoolVar(&f.local, "local", false, "ask no cluster: the arguments are files")
	c.Flags().StringArrayVar(&f.classes, "classes", nil, "with --local, `FILE` of classes; may be repeated")
	c.Flags().StringVar(&f.measurements, "measurements", "", "with --local, `FILE` of handlers with the overhead that was measured")
	c.Flags().StringVar(&f.prefer, "prefer", string(runtimeclass.PreferIsolation), "what comes first: the strongest isolation, or the least overhead")
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

func (p *program) fit(ctx context.Context, f *fitFlags, args []string) error {
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
			p.note("%s is not looked at", one)
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
		return found("%s of %d can run nowhere", output.Count(without, "pod", "pods"), len(all))
	}
	return nil
}

// fetch gets what is named from the cluster, as kubectl would.
func (p *program) fetch(ctx context.Context, s *server, args []string) ([]runtimeclass.Object, error) {
	namespace, _, err := p.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, wrong(err)
	}
	// A name alone is that of a pod.
	if !strings.Contains(args[0], "/") && len(args) == 1 {
		args = []string{"pod/" + args[0]}
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
			t.Add(f.Pod, class, handler, string(c.Fits), or(string(c.Isolation)), or(resources(c.Overhead)), or(names), or(c.Why()))
		}
	}
	return t
}
