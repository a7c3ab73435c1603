package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/manifests"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// fittedLocally is what fit --local prints of a pod.
type fittedLocally struct {
	Pod   string `json:"pod"`
	Where string `json:"where"`
	// Fits is that of the handler of the pod's class; without a class the best of all.
	Fits     capability.Answer          `json:"fits"`
	Needs    []runtimeclass.Requirement `json:"needs"`
	Handlers []runtimeclass.Verdict     `json:"handlers"`
}

func (w *classWork) fit() error {
	by := runtimeclass.Preference(w.flags.prefer)
	handlers, err := w.handlers(nil)
	if err != nil {
		return err
	}
	pods, classes, err := w.pods()
	if err != nil {
		return err
	}
	all, without := []fittedLocally{}, 0
	for _, p := range pods {
		f := fittedLocally{Pod: p.Owner, Where: p.Where(""), Needs: runtimeclass.Requirements(p.Pod), Handlers: runtimeclass.Fit(p.Pod, handlers, classes, by)}
		var why string
		if f.Fits, why = runtimeclass.OfItsClass(p.Pod, classes, f.Handlers); why != "" {
			w.note("%s: %s", p.Owner, why)
		}
		if f.Needs == nil {
			f.Needs = []runtimeclass.Requirement{}
		}
		if f.Fits == capability.No {
			without++
		}
		all = append(all, f)
	}
	if err := output.Encode(w.Out, w.flags.output, map[string]any{"pods": all}, func(to io.Writer) error { return localFitTable(all, w.flags.output == "wide").Write(to) }); err != nil {
		return err
	}
	if without > 0 {
		return found("%s of %d cannot run as written", output.Count(without, "pod", "pods"), len(all))
	}
	return nil
}

// pods are those of the files, and the classes of them and of --classes.
func (w *classWork) pods() ([]runtimeclass.Pod, []runtimeclass.Class, error) {
	objects, err := w.objects(w.args)
	if err != nil {
		return nil, nil, err
	}
	if err := w.want(objects, "pod", manifests.IsPod, manifests.IsClass); err != nil {
		return nil, nil, err
	}
	more, err := w.classesOf(w.flags.classes, "classes")
	if err != nil {
		return nil, nil, err
	}
	classes := append(runtimeclass.Classes(objects), more...)
	for i, c := range classes {
		if slices.ContainsFunc(classes[:i], func(o runtimeclass.Class) bool { return o.Name == c.Name && o.Where("") != c.Where("") }) {
			return nil, nil, wrong(fmt.Errorf("%s: duplicate RuntimeClass %q", c.Where(""), c.Name))
		}
	}
	return runtimeclass.Pods(objects), classes, nil
}

func localFitTable(all []fittedLocally, wide bool) *output.Table {
	t := &output.Table{Header: []string{"POD", "HANDLER", "FITS", "ISOLATION", "MEMORY", "CPU", "CLASSES", "REASON"}, Whole: wide}
	for _, f := range all {
		for _, v := range f.Handlers {
			name, memory, cpu := v.Handler, "-", "-"
			if v.Default {
				name += " (default)"
			}
			if v.Overhead != nil {
				memory, cpu = runtimeclass.Amount(corev1.ResourceMemory, v.Overhead.Memory.P95), runtimeclass.Amount(corev1.ResourceCPU, v.Overhead.CPU.P95)
			}
			t.Add(f.Pod, name, string(v.Fits), or(string(v.Isolation)), memory, cpu, or(strings.Join(v.Classes, ", ")), strings.Join(v.Reasons(), "; "))
		}
	}
	return t
}
