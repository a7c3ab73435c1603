package runtimeclass

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

const (
	// placesReason rejects a container that requests a resource that counts pods: the scheduler and
	// the kubelet would count the request as pods, and refuse or end other pods.
	placesReason = " counts pods, and only the overhead of a class may request it"
	// PlacesAdvice is the remedy.
	PlacesAdvice = "remove it: a pod is counted by its class"
)

// placesOf returns the reasons against containers that request resources that count pods, one for
// each container.
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

// PlacesExpression is placesOf in CEL. It iterates over variables.counted, which are resources, and
// not over a container's requests, of which there may be too many for the server.
func PlacesExpression() string {
	const asked = "(r in c.object.?resources.?limits.orValue({}) || r in c.object.?resources.?requests.orValue({}))"
	return fmt.Sprintf("variables.containers.filter(c, variables.counted.exists(r, %s)).map(c, c.at + '.resources: ' + variables.counted.filter(r, %s)[0] + %s)", asked, asked, Quote(placesReason))
}
