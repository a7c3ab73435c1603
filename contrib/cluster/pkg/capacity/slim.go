package capacity

import (
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// Pod holds the used fields of a pod. In a large cluster the other fields would take most of the
// controller's memory.
type Pod struct {
	metav1.ObjectMeta // informers need it
	node              string
	// class is empty for a pod without one.
	class string
	ended bool
	// takes is the request as the scheduler and the kubelet count it; has is the part from the
	// pod's class.
	takes, has []podResource
}

// podResource is an amount of a resource that counts pods.
type podResource struct {
	of   corev1.ResourceName
	pods int64
}

// podOf returns the used fields of a pod. Pure.
func podOf(p *corev1.Pod, counting Counting) *Pod {
	slim := &Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: intern(p.Namespace), ResourceVersion: p.ResourceVersion},
		node:       intern(p.Spec.NodeName),
		ended:      p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		takes:      podResources(counting.of(p)), has: podResources(p.Spec.Overhead),
	}
	if class := p.Spec.RuntimeClassName; class != nil {
		slim.class = intern(*class)
	}
	return slim
}

// intern returns a shared copy of the text, so that equal texts use memory once.
func intern[T ~string](text T) T { return unique.Make(text).Value() }

func podResources(of corev1.ResourceList) []podResource {
	var all []podResource
	for name, q := range of {
		if nodelabel.IsPods(string(name)) {
			all = append(all, podResource{intern(name), q.Value()})
		}
	}
	return all
}

func (c Counting) slimPod(o any) (any, error) {
	if p, is := o.(*corev1.Pod); is {
		return podOf(p, c), nil
	}
	return o, nil
}

// slimNode keeps only the fields that are read here: the others take much memory.
func slimNode(o any) (any, error) {
	n, is := o.(*corev1.Node)
	if !is {
		return o, nil
	}
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion, Labels: map[string]string{}},
		Status:     corev1.NodeStatus{Capacity: slimList(n.Status.Capacity), Allocatable: slimList(n.Status.Allocatable)},
	}
	for key, value := range n.Labels {
		if nodelabel.IsOfHandler(key) {
			slim.Labels[key] = value
		}
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			slim.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return slim, nil
}

func slimList(of corev1.ResourceList) corev1.ResourceList {
	slim := corev1.ResourceList{}
	for name, q := range of {
		if name == corev1.ResourcePods || nodelabel.IsPods(string(name)) {
			slim[name] = *resource.NewQuantity(q.Value(), q.Format)
		}
	}
	return slim
}
