package main

import (
	"slices"
	"strings"
	"testing"
)

// TestGrowthIsNamed compares readings: what is more is named with a sample, and what is less or
// within its tolerance is not.
func TestGrowthIsNamed(t *testing.T) {
	base := reading{
		names: map[string][]string{
			files:       {"/root/a", "/root/snapshots/7"},
			descriptors: {"socket:[17]", "/root/db"},
			elements:    {"10.1.0.2", "10.1.0.3"},
		},
		amounts: map[string]float64{goroutines: 50, heap: 12 << 20, anonymous: 20 << 20},
	}
	for _, c := range []struct {
		name    string
		names   map[string][]string
		amounts map[string]float64
		want    []string
	}{
		{"another socket and snapshot", map[string][]string{files: {"/root/a", "/root/snapshots/9"}, descriptors: {"socket:[99]", "/root/db"}}, nil, nil},
		{"fewer", map[string][]string{elements: {"10.1.0.2"}}, map[string]float64{goroutines: 10}, nil},
		{"within the tolerance", nil, map[string]float64{goroutines: 54, heap: 16 << 20, anonymous: 28 << 20}, nil},
		{"a file", map[string][]string{files: {"/root/a", "/root/snapshots/7", "/root/b"}}, nil, []string{"file: 3, after the warm-up 2; new are:\n  /root/b"}},
		{"a new kind", map[string][]string{namespaces: {"berth-1"}}, nil, []string{"network namespace: 1, after the warm-up 0; new are:\n  berth-1"}},
		{"a socket", map[string][]string{descriptors: {"socket:[1]", "socket:[2]", "/root/db"}}, nil, []string{"descriptor of the daemon: 3, after the warm-up 2; new are:\n  socket:[2]"}},
		{"amounts", nil, map[string]float64{goroutines: 55, heap: 17 << 20}, []string{
			"goroutines: 55, after the warm-up 50; 4 more are tolerated",
			"heap of the daemon: 17825792, after the warm-up 12582912; 4194304 more are tolerated",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := base.growth(reading{names: c.names, amounts: c.amounts})
			if !slices.Equal(got, c.want) {
				t.Errorf("grown:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}
