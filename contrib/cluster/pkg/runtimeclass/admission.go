package runtimeclass

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Admission is the result of an API server's RuntimeClass admission for a pod.
type Admission struct {
	// Rejection is the API server's answer; empty if the pod is admitted.
	Rejection string
	// Pod is the pod after admission. If the pod is rejected, Pod is the original pod.
	Pod *corev1.Pod
	// Class is the pod's class; nil if the pod names no existing class.
	Class *nodev1.RuntimeClass
}

// Admit admits or rejects a new pod, as a cluster with these classes would. It does not change pod.
func Admit(pod *corev1.Pod, classes []Class) Admission {
	a := Admission{Pod: pod.DeepCopy()}
	rejected := func(format string, args ...any) Admission {
		// If a pod has no name, the API server reports its generateName.
		name := cmp.Or(pod.Name, pod.GenerateName, "Unknown")
		answer := apierrors.NewForbidden(corev1.Resource("pods"), name, fmt.Errorf(format, args...))
		return Admission{Rejection: answer.Error(), Pod: pod, Class: a.Class}
	}
	if name := pod.Spec.RuntimeClassName; name != nil {
		// If several classes have the same name, the first class is used.
		if i := slices.IndexFunc(classes, func(c Class) bool { return c.Name == *name }); i >= 0 {
			a.Class = classes[i].RuntimeClass
		} else {
			if *name == "" {
				// The API server looks up an empty name, too. The library that it uses for this,
				// client-go, rejects the empty name.
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
	// Kubernetes validates the overhead last, after all changes of the pod.
	if (a.Class == nil || a.Class.Overhead == nil) && pod.Spec.Overhead != nil {
		return rejected("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	}
	return a
}

// schedule adds the class's node selector and tolerations to the pod.
func (a *Admission) schedule(pod *corev1.Pod) error {
	if a.Class == nil || a.Class.Scheduling == nil {
		return nil
	}
	s := a.Class.Scheduling
	for _, key := range slices.Sorted(maps.Keys(s.NodeSelector)) {
		wanted := s.NodeSelector[key]
		if has, there := pod.Spec.NodeSelector[key]; there && has != wanted {
			return fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, wanted, key, has)
		}
		if a.Pod.Spec.NodeSelector == nil {
			a.Pod.Spec.NodeSelector = map[string]string{}
		}
		a.Pod.Spec.NodeSelector[key] = wanted
	}
	a.Pod.Spec.Tolerations = slices.Concat(pod.Spec.Tolerations, s.Tolerations)
	return nil
}
