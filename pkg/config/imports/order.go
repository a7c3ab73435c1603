package imports

import (
	"cmp"
	"maps"
	"slices"

	"github.com/berth-cri/berth/pkg/handler"
)

func comparePlaces(a, b Place) int {
	return cmp.Or(cmp.Compare(a.File, b.File), slices.Compare(a.Key, b.Key))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// near is advice to someone who mistyped a key.
func near[V any](key string, known map[string]V) string {
	if like, ok := handler.Nearest(key, sortedKeys(known)); ok {
		return "correct it to " + like + " if that was meant"
	}
	return ""
}
