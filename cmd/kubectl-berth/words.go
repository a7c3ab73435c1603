package main

import (
	"maps"
	"slices"
	"strings"
)

// selector is how kubectl writes labels.
func selector(m map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k+"="+m[k])
	}
	return strings.Join(all, ",")
}
