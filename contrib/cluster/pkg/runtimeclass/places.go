package runtimeclass

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

const (
	// placesReason is against a container that requests pods of a handler: the scheduler and the
	// kubelet take them for pods, so that others have no room, or are ended.
	placesReason = " counts pods, and only the overhead of a class may request it"
	// PlacesAdvice is what to do about such a container.
	PlacesAdvice = "remove it: a pod is counted by its class"
)

// placesOf are the reasons against the containers of a pod that request pods of handlers, one
// for each container.
func placesOf(pod *corev1.Pod) []string {
	var all []string
	for _, list := range []struct {
		name string
		of   []corev1.Container
	}{{"initContainers", pod.Spec.InitContainers}, {"containers", pod.Spec.Containers}} {
		for i := range list.of {
			var names []string
			for _, asked := range []corev1.ResourceList{list.of[i].Resources.Limits, list.of[i].Resources.Requests} {
				for name := range asked {
					if nodelabel.IsPods(string(name)) {
						names = append(names, string(name))
					}
				}
			}
			if len(names) > 0 {
				all = append(all, fmt.Sprintf("spec.%s[%d].resources: %s%s", list.name, i, slices.Min(names), placesReason))
			}
		}
	}
	return all
}

// PlacesExpression is placesOf in CEL, of variables.containers and variables.counted, which
// are resources: a container may request so many that the server would not look at all.
func PlacesExpression() string {
	const asked = "(r in c.object.?resources.?limits.orValue({}) || r in c.object.?resources.?requests.orValue({}))"
	return fmt.Sprintf("variables.containers.filter(c, variables.counted.exists(r, %s)).map(c, c.at + '.resources: ' + variables.counted.filter(r, %s)[0] + %s)", asked, asked, Quote(placesReason))
}
