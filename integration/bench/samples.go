package main

import "slices"

// samples are what was measured: metric → peer → values.
type samples map[string]map[string][]float64

func (s samples) add(key, peer string, value float64) {
	if s[key] == nil {
		s[key] = map[string][]float64{}
	}
	s[key][peer] = append(s[key][peer], value)
}

// median returns the middle of the values, 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// value is what stands for all the samples of a metric.
func (m metric) value(values []float64) float64 {
	if m.least && len(values) > 0 {
		return slices.Min(values)
	}
	return median(values)
}
