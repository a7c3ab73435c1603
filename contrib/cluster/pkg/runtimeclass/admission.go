package runtimeclass

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Admission is what becomes of a pod in the RuntimeClass admission of an API server.
type Admission struct {
	// Rejection is the API server's answer; empty if the pod is admitted.
	Rejection string
	// Pod is the pod as it is admitted, else as it was.
	Pod *corev1.Pod
	// Class is the pod's, or nil: it names none, or there is none of that name.
	Class *nodev1.RuntimeClass
}

// Admit decides about a pod that is created in a cluster with these classes. The
// pod is not changed.
func Admit(pod *corev1.Pod, classes []Class) Admission {
	a := Admission{Pod: pod.DeepCopy()}
	rejected := func(format string, args ...any) Admission {
		return Admission{Rejection: forbidden(pod, fmt.Errorf(format, args...)), Pod: pod, Class: a.Class}
	}
	if name := pod.Spec.RuntimeClassName; name != nil {
		if a.Class = named(classes)[*name]; a.Class == nil {
			if *name == "" {
				// It is asked for all the same, and the question is refused before it is sent.
				return Admission{Rejection: "resource name may not be empty", Pod: pod}
			}
			return rejected("pod rejected: RuntimeClass %q not found", *name)
		}
	}
	if a.Class != nil && a.Class.Overhead != nil {
		fixed := a.Class.Overhead.PodFixed
		if len(pod.Spec.Overhead) > 0 && !equality.Semantic.DeepEqual(fixed, pod.Spec.Overhead) {
			return rejected("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
		a.Pod.Spec.Overhead = fixed.DeepCopy()
	}
	if conflict := a.schedule(pod); conflict != nil {
		return rejected("%w", conflict)
	}
	// Looked at last, when all that changes pods has done so.
	if (a.Class == nil || a.Class.Overhead == nil) && pod.Spec.Overhead != nil {
		return rejected("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	}
	return a
}

// schedule gives the pod what the class says about nodes.
func (a *Admission) schedule(pod *corev1.Pod) error {
	if a.Class == nil || a.Class.Scheduling == nil {
		return nil
	}
	s := a.Class.Scheduling
	for _, key := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		wanted := s.NodeSelector[key]
		has, there := pod.Spec.NodeSelector[key]
		switch {
		case there && has != wanted:
			return fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, wanted, key, has)
		case !there:
			a.Pod.Spec.NodeSelector = with(a.Pod.Spec.NodeSelector, key, wanted)
		}
	}
	a.Pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, s.Tolerations)
	return nil
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// forbidden is an answer of the API server. A pod without a name is called by what
// its name will begin with.
func forbidden(pod *corev1.Pod, why error) string {
	name := pod.Name
	if name == "" {
		name = pod.GenerateName
	}
	if name == "" {
		name = "Unknown"
	}
	return apierrors.NewForbidden(corev1.Resource("pods"), name, why).Error()
}

// mergeTolerations is the union of both, without those that another one includes.
// Of equal ones the first stays.
func mergeTolerations(first, second []corev1.Toleration) []corev1.Toleration {
	all := slices.Concat(first, second)
	var merged []corev1.Toleration
	for i, t := range all {
		covers := func(other corev1.Toleration) bool { return includes(other, t) }
		larger := func(other corev1.Toleration) bool { return !equality.Semantic.DeepEqual(t, other) && covers(other) }
		if !slices.ContainsFunc(merged, covers) && !slices.ContainsFunc(all[i+1:], larger) {
			merged = append(merged, t)
		}
	}
	return merged
}

// includes says whether whatever t tolerates, wide does too.
func includes(wide, t corev1.Toleration) bool {
	switch {
	case equality.Semantic.DeepEqual(wide, t):
		return true
	case wide.Key != t.Key && (wide.Key != "" || wide.Operator != corev1.TolerationOpExists):
		return false
	case wide.Effect != t.Effect && wide.Effect != "":
		return false
	case wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds):
		return false
	case wide.Operator == corev1.TolerationOpExists:
		return true
	}
	// An operator that is left out is Equal, and yet is not taken for it here.
	return (wide.Operator == corev1.TolerationOpEqual || wide.Operator == "") && t.Operator == corev1.TolerationOpEqual && t.Value == wide.Value
}
