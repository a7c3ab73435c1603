package runtimeclass

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Requirement is a capability that a pod needs from its handler.
type Requirement struct {
	Capability capability.Name `json:"capability"`
	// Field is the first field that requests it.
	Field string `json:"field"`
	// Value is the field's value.
	Value string `json:"value"`
}

// String returns one line of bounded length.
func (r Requirement) String() string { return clip(r.Field + ": " + r.Value) }

// Requirements returns the capabilities that a pod requests, each once, in the order of the rules.
func Requirements(pod *corev1.Pod) []Requirement {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		panic("runtimeclass: " + err.Error()) // a Pod can always be converted
	}
	containers := containersOf(object)
	var all []Requirement
	for _, r := range rules {
		if field, value, asked := r.firstOf(object, containers); asked {
			all = append(all, Requirement{r.capability, field, value})
		}
	}
	return all
}

// containersOf returns all containers of a pod, with their paths, in the order of containerLists.
func containersOf(pod map[string]any) []place {
	var all []place
	for _, list := range containerLists {
		items, _ := lookup(pod, "spec."+list).([]any)
		for i, item := range items {
			all = append(all, place{at: fmt.Sprintf("spec.%s[%d]", list, i), object: item, pod: pod})
		}
	}
	return all
}

// firstOf returns the first field that requests the rule's capability.
func (r rule) firstOf(pod map[string]any, containers []place) (field, value string, asked bool) {
	for _, a := range r.pod {
		if field, value, asked = a.find(place{object: pod, pod: pod}); asked {
			return field, value, true
		}
	}
	for _, c := range containers {
		for _, a := range r.containers {
			if field, value, asked = a.find(c); asked {
				return field, value, true
			}
		}
	}
	return "", "", false
}

func lookup(object any, path string) any {
	for step := range strings.SplitSeq(path, ".") {
		fields, ok := object.(map[string]any)
		if !ok {
			return nil
		}
		object = fields[step]
	}
	return object
}

// textAt returns a string field of an object, or "".
func textAt(object any, path string) string {
	s, _ := lookup(object, path).(string)
	return s
}

// clipped is the number of characters shown of a field and its value.
const clipped = 200

// printed matches the parts of a text that an API server sends in warnings.
const printed = `[^\p{Cc}]+`

var printedParts = regexp.MustCompile(printed)

// clip shortens a pod's text to one line: a command may be a whole script, and an API server omits
// messages of several lines and warnings with a control character.
func clip(s string) string {
	if all := []rune(s); len(all) > clipped {
		s = string(all[:clipped]) + "…"
	}
	return strings.Join(printedParts.FindAllString(s, -1), " ")
}
