package runtimeclass

import (
	"encoding/json"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	nodev1alpha1 "k8s.io/api/node/v1alpha1"
	nodev1beta1 "k8s.io/api/node/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	strictjson "sigs.k8s.io/json"
)

// kind makes an empty object to read into, and takes from it what is of interest.
type kind struct {
	empty func() metav1.Object
	class func(metav1.Object) *Class
	pod   func(metav1.Object) *corev1.Pod
}

const nodeGroup = "node.k8s.io/"

// kinds are those that are read. All other objects are only named.
var kinds = map[header]kind{
	{nodeGroup + "v1", "RuntimeClass"}:       classes(func(c *nodev1.RuntimeClass) *Class { return &Class{Version: "v1", RuntimeClass: c} }),
	{nodeGroup + "v1beta1", "RuntimeClass"}:  classes(fromBeta),
	{nodeGroup + "v1alpha1", "RuntimeClass"}: classes(fromAlpha),

	{"v1", "Pod"}: workload(func(o *corev1.Pod) *corev1.Pod { return o }),
	{"v1", "PodTemplate"}: workload(func(o *corev1.PodTemplate) *corev1.Pod {
		return generated(o, &o.Template, "")
	}),
	{"v1", "ReplicationController"}: workload(func(o *corev1.ReplicationController) *corev1.Pod {
		return generated(o, o.Spec.Template, "")
	}),
	{"apps/v1", "Deployment"}: workload(func(o *appsv1.Deployment) *corev1.Pod {
		return generated(o, &o.Spec.Template, "hash-")
	}),
	{"apps/v1", "ReplicaSet"}: workload(func(o *appsv1.ReplicaSet) *corev1.Pod {
		return generated(o, &o.Spec.Template, "")
	}),
	{"apps/v1", "DaemonSet"}: workload(func(o *appsv1.DaemonSet) *corev1.Pod {
		return generated(o, &o.Spec.Template, "")
	}),
	{"apps/v1", "StatefulSet"}: workload(func(o *appsv1.StatefulSet) *corev1.Pod {
		pod := generated(o, &o.Spec.Template, "")
		pod.Name, pod.GenerateName = o.Name+"-0", ""
		return pod
	}),
	{"batch/v1", "Job"}: workload(func(o *batchv1.Job) *corev1.Pod {
		return generated(o, &o.Spec.Template, "")
	}),
	{"batch/v1", "CronJob"}: workload(func(o *batchv1.CronJob) *corev1.Pod {
		return generated(o, &o.Spec.JobTemplate.Spec.Template, "time-")
	}),
}

func classes[T any, P interface {
	*T
	metav1.Object
}](class func(P) *Class) kind {
	return kind{empty: func() metav1.Object { return P(new(T)) }, class: func(o metav1.Object) *Class { return class(o.(P)) }}
}

func workload[T any, P interface {
	*T
	metav1.Object
}](pod func(P) *corev1.Pod) kind {
	return kind{empty: func() metav1.Object { return P(new(T)) }, pod: func(o metav1.Object) *corev1.Pod { return pod(o.(P)) }}
}

// generated is the pod that a controller makes of its template. What the controller
// puts between its own name and the pod's is a word in the place of it.
func generated(owner metav1.Object, template *corev1.PodTemplateSpec, between string) *corev1.Pod {
	if template == nil {
		template = &corev1.PodTemplateSpec{}
	}
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.Name, pod.GenerateName = owner.GetNamespace(), "", owner.GetName()+"-"+between
	return pod
}

// served is what is the same in all versions.
func served(m metav1.ObjectMeta) *nodev1.RuntimeClass {
	return &nodev1.RuntimeClass{TypeMeta: metav1.TypeMeta{APIVersion: nodeGroup + "v1", Kind: "RuntimeClass"}, ObjectMeta: m}
}

func fromBeta(c *nodev1beta1.RuntimeClass) *Class {
	v1 := served(c.ObjectMeta)
	v1.Handler = c.Handler
	if c.Overhead != nil {
		v1.Overhead = &nodev1.Overhead{PodFixed: c.Overhead.PodFixed}
	}
	if c.Scheduling != nil {
		v1.Scheduling = &nodev1.Scheduling{NodeSelector: c.Scheduling.NodeSelector, Tolerations: c.Scheduling.Tolerations}
	}
	return &Class{Version: "v1beta1", RuntimeClass: v1}
}

func fromAlpha(c *nodev1alpha1.RuntimeClass) *Class {
	v1 := served(c.ObjectMeta)
	v1.Handler = c.Spec.RuntimeHandler
	if o := c.Spec.Overhead; o != nil {
		v1.Overhead = &nodev1.Overhead{PodFixed: o.PodFixed}
	}
	if s := c.Spec.Scheduling; s != nil {
		v1.Scheduling = &nodev1.Scheduling{NodeSelector: s.NodeSelector, Tolerations: s.Tolerations}
	}
	return &Class{Version: "v1alpha1", RuntimeClass: v1}
}

// decode reads one object that is no list.
func decode(s Source, h header, body []byte) (Object, Problems) {
	o := Object{Source: s, APIVersion: h.APIVersion, Kind: h.Kind}
	k, known := kinds[h]
	if !known {
		var m struct {
			Metadata struct{ Namespace, Name string } `json:"metadata"`
		}
		if err := json.Unmarshal(body, &m); err == nil {
			o.Namespace, o.Name = m.Metadata.Namespace, m.Metadata.Name
		}
		return o, nil
	}
	into := k.empty()
	strict, err := strictjson.UnmarshalStrict(body, into)
	if err != nil {
		p := Problem{Source: s, Text: fmt.Sprintf("is not a %s: %v", h.Kind, plain(err))}
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			p.Field = wrong.Field
		}
		return o, Problems{p}
	}
	var problems Problems
	for _, err := range strict {
		problems = append(problems, unknown(s, err))
	}
	o.Namespace, o.Name = into.GetNamespace(), into.GetName()
	if o.Name == "" && into.GetGenerateName() != "" {
		o.Name = into.GetGenerateName() + "…"
	}
	if k.class != nil {
		o.Class = k.class(into)
		o.Class.Source = s
		o.Class.TypeMeta = metav1.TypeMeta{APIVersion: nodeGroup + "v1", Kind: "RuntimeClass"}
		return o, problems
	}
	pod := k.pod(into)
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	o.Pod = &Pod{Source: s, Owner: o.String(), Pod: pod}
	return o, problems
}
