package runtimeclass

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// GenerateOptions select the fields of generated classes.
type GenerateOptions struct {
	// AnyNode omits the node selector, which is on a label of the handler.
	AnyNode bool
	// NoCapacity omits the resource that counts pods, for clusters without berth-controller. Nodes
	// are then selected only while the handler takes pods.
	NoCapacity bool
	// Tolerations are added to all classes.
	Tolerations []corev1.Toleration
}

// Generate creates a class for a handler, under its name, and a line about the source of its
// overhead. The overhead is the measured one and never a guess. Annotations hold the handler's
// properties.
func Generate(h Handler, o GenerateOptions) (c *nodev1.RuntimeClass, note string) {
	c = &nodev1.RuntimeClass{TypeMeta: classMeta, ObjectMeta: metav1.ObjectMeta{Name: h.Name, Annotations: h.annotations()}, Handler: h.Name}
	note = "overhead: not measured, none declared"
	if m := h.measured(); m != nil {
		if fixed := m.recommended(); len(fixed) > 0 {
			c.Overhead = &nodev1.Overhead{PodFixed: fixed}
			note = "overhead: measured, p95 of " + m.podCounts()
		} else {
			note = "overhead: none measured in " + m.pods(Distribution{})
		}
	}
	if !o.NoCapacity {
		if c.Overhead == nil {
			c.Overhead = &nodev1.Overhead{PodFixed: corev1.ResourceList{}}
		}
		c.Overhead.PodFixed[corev1.ResourceName(nodelabel.Pods(h.Name))] = resource.MustParse("1")
	}
	if !o.AnyNode || len(o.Tolerations) > 0 {
		c.Scheduling = &nodev1.Scheduling{Tolerations: o.Tolerations}
		switch {
		case o.AnyNode:
		case o.NoCapacity:
			c.Scheduling.NodeSelector = map[string]string{nodelabel.Handler(h.Name): nodelabel.Ready}
		default:
			c.Scheduling.NodeSelector = map[string]string{nodelabel.Present(h.Name): nodelabel.True}
		}
	}
	return c, note
}

// Counted reports whether each pod of a class requests the resource that counts pods of its
// handler.
func Counted(c *nodev1.RuntimeClass) bool {
	if c.Overhead == nil {
		return false
	}
	_, counted := c.Overhead.PodFixed[corev1.ResourceName(nodelabel.Pods(c.Handler))]
	return counted
}

// ParseToleration reads "key=value:Effect", "key:Effect", "key=value" or "key".
func ParseToleration(text string) (corev1.Toleration, error) {
	key, effect, _ := strings.Cut(text, ":")
	key, value, valued := strings.Cut(key, "=")
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
	if valued {
		t.Operator, t.Value = corev1.TolerationOpEqual, value
	}
	if key == "" {
		return t, fmt.Errorf("toleration %q has no key; write key=value:Effect or key:Effect", text)
	}
	return t, nil
}

// Choose returns the named handlers as chosen. Without names, chosen are the handlers that take
// pods, and passed are the others.
func Choose(handlers []Handler, names []string) (chosen, passed []Handler, err error) {
	for _, name := range names {
		h, ok := ByName(handlers, name)
		if !ok {
			return nil, nil, fmt.Errorf("handler %q does not exist; there are %s%s", name, strings.Join(Names(handlers), ", "), DidYouMean(name, Names(handlers)))
		}
		chosen = append(chosen, h)
	}
	if len(names) > 0 {
		return chosen, nil, nil
	}
	for _, h := range handlers {
		if h.takesPods() {
			chosen = append(chosen, h)
		} else {
			passed = append(passed, h)
		}
	}
	return chosen, passed, nil
}
