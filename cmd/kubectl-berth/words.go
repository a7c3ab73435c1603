package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// selector is how kubectl writes labels.
func selector(m map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return strings.Join(all, ",")
}

func resources(l corev1.ResourceList) string {
	var all []string
	for _, n := range slices.Sorted(maps.Keys(l)) {
		q := l[n]
		all = append(all, fmt.Sprintf("%s=%s", n, q.String()))
	}
	return strings.Join(all, ",")
}

func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
