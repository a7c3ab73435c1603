package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Phases are the CRI's calls for a pod, in their order, as the kubelet counts them.
var Phases = []string{"run_podsandbox", "pull_image", "create_container", "start_container"}

// Counts are what a kubelet has counted since its start.
type Counts struct {
	// Sandboxes are the calls to create a sandbox, and Failed those of them that failed,
	// by handler; the default handler has no name.
	Sandboxes map[string]Durations
	Failed    map[string]float64
	// Calls are by phase.
	Calls map[string]Durations
}

// Durations are how many calls took how long.
type Durations struct {
	Count float64
	// Within is how many took at most so many seconds.
	Within map[float64]float64
}

// Metrics of the kubelet that are read.
const (
	sandboxesMetric = "kubelet_run_podsandbox_duration_seconds"
	failedMetric    = "kubelet_run_podsandbox_errors_total"
	callsMetric     = "kubelet_runtime_operations_duration_seconds"
)

// mostCounted is how much text of these a kubelet may have: each histogram is 2 KiB, and there
// is one of each handler and of some thirty calls.
const mostCounted = 512 << 10

// ReadCounts takes from a kubelet's metrics what there is about pods that start. The rest is
// not looked at, and what is too much for any kubelet is an error.
func ReadCounts(metrics io.Reader) (Counts, error) {
	text, err := aboutPods(metrics)
	if err != nil {
		return Counts{}, fmt.Errorf("read the kubelet's metrics: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return Counts{}, fmt.Errorf("read the kubelet's metrics: %w", err)
	}
	counts := Counts{Sandboxes: map[string]Durations{}, Failed: map[string]float64{}, Calls: map[string]Durations{}}
	for _, m := range families[sandboxesMetric].GetMetric() {
		counts.Sandboxes[labelOf(m, "runtime_handler")] = durations(m)
	}
	for _, m := range families[failedMetric].GetMetric() {
		counts.Failed[labelOf(m, "runtime_handler")] = m.GetCounter().GetValue()
	}
	for _, m := range families[callsMetric].GetMetric() {
		if phase := labelOf(m, "operation_type"); slices.Contains(Phases, phase) {
			counts.Calls[phase] = durations(m)
		}
	}
	return counts, nil
}

// aboutPods are the lines of the metrics that are read.
func aboutPods(metrics io.Reader) (*bytes.Buffer, error) {
	kept, lines, are := &bytes.Buffer{}, bufio.NewScanner(metrics), false
	lines.Buffer(nil, mostCounted)
	for lines.Scan() {
		line := lines.Bytes()
		name, kind := bytes.CutPrefix(line, []byte("# TYPE "))
		are = are || kind
		if !slices.ContainsFunc([]string{sandboxesMetric, failedMetric, callsMetric}, func(of string) bool { return bytes.HasPrefix(name, []byte(of)) }) {
			continue
		}
		if kept.Len()+len(line) > mostCounted {
			return nil, fmt.Errorf("more than %d KiB about pods that start", mostCounted>>10)
		}
		kept.Write(line)
		kept.WriteByte('\n')
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if !are {
		return nil, errors.New("it sends something else")
	}
	return kept, nil
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func durations(m *dto.Metric) Durations {
	h := m.GetHistogram()
	d := Durations{Count: float64(h.GetSampleCount()), Within: map[float64]float64{}}
	for _, b := range h.GetBucket() {
		if !math.IsInf(b.GetUpperBound(), 1) {
			d.Within[b.GetUpperBound()] = float64(b.GetCumulativeCount())
		}
	}
	return d
}

// shrank says whether there are fewer of some kind than before.
func (d Durations) shrank(before Durations) bool {
	for bound, n := range before.Within {
		if d.Within[bound] < n {
			return true
		}
	}
	return d.Count < before.Count
}

// since are those that came after others of the same kubelet.
func (d Durations) since(before Durations) Durations {
	after := Durations{Count: d.Count - before.Count, Within: map[float64]float64{}}
	for bound, n := range d.Within {
		after.Within[bound] = n - before.Within[bound]
	}
	return after
}

// Plus are those of both.
func (d Durations) Plus(more Durations) Durations {
	sum := Durations{Count: d.Count + more.Count, Within: maps.Clone(more.Within)}
	if sum.Within == nil {
		sum.Within = map[float64]float64{}
	}
	for bound, n := range d.Within {
		sum.Within[bound] += n
	}
	return sum
}

// Quantile is how many seconds that share of the calls took at most, as near as the
// bounds allow; over says that it is more than the largest bound. It is 0 if there are no
// calls.
func (d Durations) Quantile(share float64) (seconds float64, over bool) {
	if d.Count <= 0 {
		return 0, false
	}
	rank, below, least := share*d.Count, 0.0, 0.0
	for _, bound := range slices.Sorted(maps.Keys(d.Within)) {
		n := d.Within[bound]
		if n >= rank {
			return least + (bound-least)*(rank-below)/cmp.Or(n-below, 1), false
		}
		below, least = n, bound
	}
	return least, true
}

// Since is what a kubelet has counted after others of its counts. If it has fewer of
// anything it was restarted, and all that it has came after.
func (c Counts) Since(before Counts) Counts {
	if c.restarted(before) {
		return c
	}
	after := Counts{Sandboxes: since(c.Sandboxes, before.Sandboxes), Failed: map[string]float64{}, Calls: since(c.Calls, before.Calls)}
	for handler, n := range c.Failed {
		after.Failed[handler] = n - before.Failed[handler]
	}
	return after
}

func (c Counts) restarted(before Counts) bool {
	for handler, n := range before.Failed {
		if c.Failed[handler] < n {
			return true
		}
	}
	return shrank(c.Sandboxes, before.Sandboxes) || shrank(c.Calls, before.Calls)
}

func shrank(now, before map[string]Durations) bool {
	for key, d := range before {
		if now[key].shrank(d) {
			return true
		}
	}
	return false
}

func since(now, before map[string]Durations) map[string]Durations {
	after := map[string]Durations{}
	for key, d := range now {
		after[key] = d.since(before[key])
	}
	return after
}

// Plus is what two kubelets have counted.
func (c Counts) Plus(more Counts) Counts {
	sum := Counts{Sandboxes: plus(c.Sandboxes, more.Sandboxes), Failed: map[string]float64{}, Calls: plus(c.Calls, more.Calls)}
	for _, failed := range []map[string]float64{c.Failed, more.Failed} {
		for handler, n := range failed {
			sum.Failed[handler] += n
		}
	}
	return sum
}

func plus(a, b map[string]Durations) map[string]Durations {
	sum := maps.Clone(a)
	if sum == nil {
		sum = map[string]Durations{}
	}
	for key, d := range b {
		sum[key] = sum[key].Plus(d)
	}
	return sum
}

// Starts is how many sandboxes were tried.
func (c Counts) Starts() (n float64) {
	for _, d := range c.Sandboxes {
		n += d.Count
	}
	return n
}
