package classrun

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/cmd/internal/manifests"
	"github.com/berth-cri/berth/cmd/internal/output"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/runtimeclass"
)

// pods are those of the files, and the classes of them and of --classes.
func (r *runner) pods() ([]runtimeclass.Pod, []runtimeclass.Class, error) {
	objects, err := r.objects(r.Arguments)
	if err != nil {
		return nil, nil, err
	}
	if err := r.want(objects, "pod", manifests.IsPod, manifests.IsClass); err != nil {
		return nil, nil, err
	}
	more, err := r.classesOf(r.Flags.Classes, "classes")
	if err != nil {
		return nil, nil, err
	}
	classes := append(runtimeclass.Classes(objects), more...)
	for i, c := range classes {
		if slices.ContainsFunc(classes[:i], func(o runtimeclass.Class) bool { return o.Name == c.Name && o.Where("") != c.Where("") }) {
			return nil, nil, wrong(fmt.Errorf("%s: RuntimeClass %q is there twice", c.Where(""), c.Name))
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

func (r *runner) simulate() error {
	pods, classes, err := r.pods()
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
	t := &output.Table{Header: []string{"POD", "CLASS", "ADMITTED", "OVERHEAD", "NODE SELECTOR", "TOLERATIONS", "REASON"}, Whole: r.Flags.Output == "wide"}
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
	if err := output.Encode(r.Stdout, r.Flags.Output, map[string]any{"pods": all}, t.Write); err != nil {
		return err
	}
	if rejected > 0 {
		return found("%s of %d would be rejected", plural(rejected, "pod"), len(all))
	}
	return nil
}

// fitted is what fit prints of a pod.
type fitted struct {
	Pod   string `json:"pod"`
	Where string `json:"where"`
	// Fits is the best of all handlers.
	Fits     capability.Answer          `json:"fits"`
	Needs    []runtimeclass.Requirement `json:"needs"`
	Handlers []runtimeclass.Verdict     `json:"handlers"`
}

func (r *runner) fit() error {
	by := runtimeclass.Preference(r.Flags.Prefer)
	if !slices.Contains(runtimeclass.Preferences, by) {
		return wrong(fmt.Errorf("--prefer %s is none of %s and %s", by, runtimeclass.PreferIsolation, runtimeclass.PreferOverhead))
	}
	handlers, err := r.handlers()
	if err != nil {
		return err
	}
	pods, classes, err := r.pods()
	if err != nil {
		return err
	}
	all, without := []fitted{}, 0
	for _, p := range pods {
		f := fitted{Pod: p.Owner, Where: p.Where(""), Fits: capability.No, Needs: runtimeclass.Requirements(p.Pod), Handlers: runtimeclass.Fit(p.Pod, handlers, classes, by)}
		if len(f.Handlers) > 0 {
			f.Fits = f.Handlers[0].Fits
		}
		if f.Needs == nil {
			f.Needs = []runtimeclass.Requirement{}
		}
		if f.Fits == capability.No {
			without++
		}
		all = append(all, f)
	}
	if err := output.Encode(r.Stdout, r.Flags.Output, map[string]any{"pods": all}, func(w io.Writer) error { return fitTable(all, r.Flags.Output == "wide").Write(w) }); err != nil {
		return err
	}
	if without > 0 {
		return found("no handler can run %s of %d", plural(without, "pod"), len(all))
	}
	return nil
}

func fitTable(all []fitted, wide bool) *output.Table {
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

func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func resources(l corev1.ResourceList) string {
	var all []string
	for _, n := range slices.Sorted(maps.Keys(l)) {
		q := l[n]
		all = append(all, fmt.Sprintf("%s=%s", n, q.String()))
	}
	return strings.Join(all, ",")
}

func selector(m map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return strings.Join(all, ",")
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
