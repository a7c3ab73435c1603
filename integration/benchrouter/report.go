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
	besides []string
	numbers []string
}

// compare adds the medians and the 99th percentiles of calls on all lanes.
func (r *report) compare(name, unit string, scale float64, all times) {
	for _, p := range []int{50, 99} {
		d, c, m, b := percentile(all.direct, p)*scale, percentile(all.copied, p)*scale, percentile(all.relayed, p)*scale, percentile(all.through, p)*scale
		r.rows = append(r.rows, fmt.Sprintf("| %s, p%d | %s | %.4g | %+.4g | %+.4g | %+.4g | %.2f | %.2f |", name, p, unit, d, c-d, m-d, b-d, b/d, b/m))
	}
}

// beside adds the medians and the 99th percentiles of calls that another daemon is
// not to matter to.
func (r *report) beside(name, unit string, scale float64, well, stopped, killed []float64) {
	for _, p := range []int{50, 99} {
		w, s, k := percentile(well, p)*scale, percentile(stopped, p)*scale, percentile(killed, p)*scale
		r.besides = append(r.besides, fmt.Sprintf("| %s, p%d | %s | %.4g | %.4g | %.4g | %.2f | %.2f |", name, p, unit, w, s, k, s/w, k/w))
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
	const (
		head   = "\n| | | direct | added by a process that copies | by one that relays | by berth | berth/direct | berth/relay |\n|---|---|--:|--:|--:|--:|--:|--:|\n"
		beside = "\n\n| calls about own pods while the other daemon is | | well | stopped | killed | stopped/well | killed/well |\n|---|---|--:|--:|--:|--:|--:|\n"
	)
	_, err := io.WriteString(w, head+strings.Join(r.rows, "\n")+beside+strings.Join(r.besides, "\n")+"\n\n"+strings.Join(r.numbers, "\n")+"\n")
	return err
}
