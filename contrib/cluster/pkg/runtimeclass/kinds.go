package runtimeclass

import (
	"encoding/json"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	nodev1alpha1 "k8s.io/api/node/v1alpha1"
	nodev1beta1 "k8s.io/api/node/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

const nodeGroup = "node.k8s.io/"

var classMeta = metav1.TypeMeta{APIVersion: nodeGroup + "v1", Kind: "RuntimeClass"}

// classOf returns a RuntimeClass of any version in the form of v1, or nil for other objects.
func classOf(object runtime.Object) *nodev1.RuntimeClass {
	switch c := object.(type) {
	case *nodev1.RuntimeClass:
		return c
	case *nodev1beta1.RuntimeClass:
		return &nodev1.RuntimeClass{
			ObjectMeta: c.ObjectMeta, Handler: c.Handler,
			Overhead: (*nodev1.Overhead)(c.Overhead), Scheduling: (*nodev1.Scheduling)(c.Scheduling),
		}
	case *nodev1alpha1.RuntimeClass:
		return &nodev1.RuntimeClass{
			ObjectMeta: c.ObjectMeta, Handler: c.Spec.RuntimeHandler,
			Overhead: (*nodev1.Overhead)(c.Spec.Overhead), Scheduling: (*nodev1.Scheduling)(c.Spec.Scheduling),
		}
	}
	return nil
}

// podOf returns a pod, or the pod of a workload's template, or nil for other objects.
func podOf(object runtime.Object) *corev1.Pod {
	switch o := object.(type) {
	case *corev1.Pod:
		return o
	case *corev1.PodTemplate:
		return generated(o, &o.Template, "")
	case *corev1.ReplicationController:
		return generated(o, o.Spec.Template, "")
	case *appsv1.Deployment:
		return generated(o, &o.Spec.Template, "hash-")
	case *appsv1.ReplicaSet:
		return generated(o, &o.Spec.Template, "")
	case *appsv1.DaemonSet:
		return generated(o, &o.Spec.Template, "")
	case *appsv1.StatefulSet:
		pod := generated(o, &o.Spec.Template, "")
		pod.Name, pod.GenerateName = o.Name+"-0", ""
		return pod
	case *batchv1.Job:
		return generated(o, &o.Spec.Template, "")
	case *batchv1.CronJob:
		return generated(o, &o.Spec.JobTemplate.Spec.Template, "time-")
	}
	return nil
}

// generated returns the pod that a controller creates from its template. between stands for the
// text that the controller puts before the pod's suffix.
func generated(owner metav1.Object, template *corev1.PodTemplateSpec, between string) *corev1.Pod {
	if template == nil {
		template = &corev1.PodTemplateSpec{}
	}
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name, pod.GenerateName = owner.GetNamespace(), "", owner.GetName()+"-"+between
	return pod
}

// decode reads one object that is not a list. Of kinds other than classes, pods and workloads it
// reads only the name.
func decode(s Source, h header, body []byte) (Object, Problems) {
	o := Object{Source: s, APIVersion: h.APIVersion, Kind: h.Kind}
	into, err := scheme.Scheme.New(schema.FromAPIVersionAndKind(h.APIVersion, h.Kind))
	if err != nil || classOf(into) == nil && podOf(into) == nil {
		var m struct {
			Metadata struct{ Namespace, Name string } `json:"metadata"`
		}
		if err := json.Unmarshal(body, &m); err == nil {
			o.Namespace, o.Name = m.Metadata.Namespace, m.Metadata.Name
		}
		return o, nil
	}
	problems, read := unmarshal(s, body, into, "a "+h.Kind)
	if !read {
		return o, problems
	}
	if named, err := meta.Accessor(into); err == nil {
		o.Namespace, o.Name = named.GetNamespace(), named.GetName()
		if o.Name == "" && named.GetGenerateName() != "" {
			o.Name = named.GetGenerateName() + "…"
		}
	}
	if class := classOf(into); class != nil {
		class.TypeMeta = classMeta
		o.Class = &Class{Source: s, Version: strings.TrimPrefix(h.APIVersion, nodeGroup), RuntimeClass: class}
		return o, problems
	}
	pod := podOf(into)
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	o.Pod = &Pod{Source: s, Owner: o.String(), Pod: pod}
	return o, problems
}
