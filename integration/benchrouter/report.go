package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// report is what was found.
type report struct {
	rows    []string
	numbers []string
}

// compare adds the medians and the 99th percentiles of two sorts of calls.
func (r *report) compare(name, unit string, scale float64, direct, through []float64) {
	for _, p := range []int{50, 99} {
		d, b := percentile(direct, p)*scale, percentile(through, p)*scale
		r.rows = append(r.rows, fmt.Sprintf("| %s, p%d | %s | %.4g | %.4g | %+.4g | %.2f |", name, p, unit, d, b, b-d, b/d))
	}
}

// tell adds a number that is compared with nothing.
func (r *report) tell(name, unit string, value float64) {
	r.numbers = append(r.numbers, fmt.Sprintf("- %s: %.2f %s", name, value, unit))
}

// percentile is the value that p of 100 do not exceed. Pure.
func percentile(values []float64, p int) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, len(sorted)*p/100)]
}

func (r *report) write(w io.Writer) error {
	const head = "\n| | | direct | through berth | added | ratio |\n|---|---|--:|--:|--:|--:|\n"
	_, err := io.WriteString(w, head+strings.Join(r.rows, "\n")+"\n\n"+strings.Join(r.numbers, "\n")+"\n")
	return err
}
