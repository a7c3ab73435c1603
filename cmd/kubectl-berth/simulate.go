package main

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/cmd/internal/manifests"
	"github.com/berth-cri/berth/cmd/internal/output"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/runtimeclass"
)

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

// simulated is what simulate prints of a pod.
type simulated struct {
	Pod          string              `json:"pod"`
	Where        string              `json:"where"`
	Class        *string             `json:"runtimeClassName,omitempty"`
	Handler      string              `json:"handler,omitempty"`
	Admitted     bool                `json:"admitted"`
	Message      string              `json:"message,omitempty"`
	Overhead     corev1.ResourceList `json:"overhead,omitempty"`
	NodeSelector map[string]string   `json:"nodeSelector,omitempty"`
	Tolerations  []corev1.Toleration `json:"tolerations,omitempty"`
	// Result is the pod as it is admitted.
	Result *corev1.Pod `json:"result,omitempty"`
}

func (w *classWork) simulate() error {
	pods, classes, err := w.pods()
	if err != nil {
		return err
	}
	all, rejected := []simulated{}, 0
	for _, p := range pods {
		a := runtimeclass.Admit(p.Pod, classes)
		s := simulated{
			Pod: p.Owner, Where: p.Where(""), Class: p.Spec.RuntimeClassName, Admitted: a.Rejection == "", Message: a.Rejection,
			Overhead: a.Overhead, NodeSelector: a.NodeSelector, Tolerations: a.Tolerations,
		}
		if a.Class != nil {
			s.Handler = a.Class.Handler
		}
		if s.Admitted {
			s.Result = a.Pod
		} else {
			rejected++
		}
		all = append(all, s)
	}
	t := &output.Table{Header: []string{"POD", "CLASS", "ADMITTED", "OVERHEAD", "NODE SELECTOR", "TOLERATIONS", "REASON"}, Whole: w.flags.output == "wide"}
	for _, s := range all {
		class := "-"
		if s.Class != nil {
			class = fmt.Sprintf("%q", *s.Class)
			if *s.Class != "" {
				class = *s.Class
			}
		}
		t.Add(s.Pod, class, string(answer(s.Admitted)), or(resources(s.Overhead)), or(selector(s.NodeSelector)), or(tolerations(s.Tolerations)), s.Message)
	}
	if err := output.Encode(w.Out, w.flags.output, map[string]any{"pods": all}, t.Write); err != nil {
		return err
	}
	if rejected > 0 {
		return found("%s of %d would be rejected", output.Count(rejected, "pod", "pods"), len(all))
	}
	return nil
}

// tolerations are written as --toleration reads them.
func tolerations(all []corev1.Toleration) string {
	var words []string
	for _, t := range all {
		word := t.Key
		if word == "" {
			word = "*"
		}
		if t.Operator != corev1.TolerationOpExists {
			word += "=" + t.Value
		}
		if t.Effect != "" {
			word += ":" + string(t.Effect)
		}
		if t.TolerationSeconds != nil {
			word += fmt.Sprintf(" for %ds", *t.TolerationSeconds)
		}
		words = append(words, word)
	}
	return strings.Join(words, ",")
}

func answer(yes bool) capability.Answer {
	if yes {
		return capability.Yes
	}
	return capability.No
}
