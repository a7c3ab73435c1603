package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

func resources(l corev1.ResourceList) string {
	var all []string
	for _, n := range slices.Sorted(maps.Keys(l)) {
		q := l[n]
		all = append(all, fmt.Sprintf("%s=%s", n, q.String()))
	}
	return strings.Join(all, ",")
}

// costs are resources without the one that only counts pods.
func costs(l corev1.ResourceList) string {
	l = maps.Clone(l)
	maps.DeleteFunc(l, func(name corev1.ResourceName, _ resource.Quantity) bool { return nodelabel.IsPods(string(name)) })
	return resources(l)
}

// instead says what there is in place of a name that does not exist.
func instead(name string, all []string) string {
	if len(all) == 0 {
		return ""
	}
	text := "; there are " + cluster.Few(all)
	if near, ok := handler.Nearest(name, all); ok {
		text += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return text
}

func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
