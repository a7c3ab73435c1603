package policy

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Unstructured are objects as they are sent: without what only the server fills in.
func Unstructured(objects []runtime.Object) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	for _, o := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return nil, fmt.Errorf("encode %T: %w", o, err)
		}
		delete(fields, "status")
		one := unstructured.Unstructured{Object: fields}
		unstructured.RemoveNestedField(one.Object, "metadata", "creationTimestamp")
		all = append(all, one)
	}
	return all, nil
}

// YAML is a file of objects.
func YAML(all []unstructured.Unstructured) ([]byte, error) {
	var b bytes.Buffer
	for i, one := range all {
		text, err := yaml.Marshal(one.Object)
		if err != nil {
			return nil, fmt.Errorf("write %s %s: %w", one.GetKind(), one.GetName(), err)
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		b.Write(text)
	}
	return b.Bytes(), nil
}
