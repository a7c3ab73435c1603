package cluster

import (
	"maps"
	"math"
	"strings"
	"testing"
)

const kubeletMetrics = `# HELP kubelet_run_podsandbox_duration_seconds [ALPHA] Duration in seconds of the run_podsandbox operations.
# TYPE kubelet_run_podsandbox_duration_seconds histogram
kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler="",le="0.5"} 3
kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler="",le="1"} 4
kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler="",le="+Inf"} 5
kubelet_run_podsandbox_duration_seconds_sum{runtime_handler=""} 7
kubelet_run_podsandbox_duration_seconds_count{runtime_handler=""} 5
kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler="kata",le="0.5"} 0
kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler="kata",le="1"} 2
kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler="kata",le="+Inf"} 2
kubelet_run_podsandbox_duration_seconds_sum{runtime_handler="kata"} 1.5
kubelet_run_podsandbox_duration_seconds_count{runtime_handler="kata"} 2
# TYPE kubelet_run_podsandbox_errors_total counter
kubelet_run_podsandbox_errors_total{runtime_handler="kata"} 1
# TYPE kubelet_runtime_operations_duration_seconds histogram
kubelet_runtime_operations_duration_seconds_bucket{operation_type="create_container",le="1"} 9
kubelet_runtime_operations_duration_seconds_bucket{operation_type="create_container",le="+Inf"} 9
kubelet_runtime_operations_duration_seconds_count{operation_type="create_container"} 9
kubelet_runtime_operations_duration_seconds_bucket{operation_type="list_containers",le="+Inf"} 999
kubelet_runtime_operations_duration_seconds_count{operation_type="list_containers"} 999
# TYPE up gauge
up 1
`

func TestReadCounts(t *testing.T) {
	c, err := ReadCounts(strings.NewReader(kubeletMetrics))
	if err != nil {
		t.Fatal(err)
	}
	want := map[float64]float64{0.5: 3, 1: 4}
	if d := c.Sandboxes[""]; d.Count != 5 || !maps.Equal(d.Within, want) || c.Sandboxes["kata"].Count != 2 {
		t.Errorf("sandboxes: %+v", c.Sandboxes)
	}
	if c.Failed["kata"] != 1 || c.Starts() != 7 || len(c.Calls) != 1 || c.Calls["create_container"].Count != 9 {
		t.Errorf("it has %+v", c)
	}
	for text, want := range map[string]string{
		"":         "something else",
		"<html>\n": "something else",
		"# TYPE x gauge\nkubelet_run_podsandbox_errors_total {\n": "kubelet's metrics: ",
		// A node that is somebody else's by now must not use up the memory of who looks at it.
		"# TYPE x gauge\n" + strings.Repeat("kubelet_run_podsandbox_errors_total{runtime_handler=\"x\"} 1\n", mostCounted/50): "more than 512 KiB",
		"# TYPE x gauge\n" + strings.Repeat("x", mostCounted+1):                                                               "too long",
	} {
		if _, err := ReadCounts(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %s", text, err, want)
		}
	}
}

func TestQuantile(t *testing.T) {
	d := func(count float64, within ...float64) Durations {
		d := Durations{Count: count, Within: map[float64]float64{}}
		for i, n := range within {
			d.Within[float64(i+1)] = n
		}
		return d
	}
	for name, c := range map[string]struct {
		of      Durations
		seconds float64
		over    bool
	}{
		"nothing":             {Durations{}, 0, false},
		"in the first":        {d(100, 100, 100, 100), 0.95, false},
		"in the second":       {d(100, 90, 100, 100), 1.5, false},
		"at a bound":          {d(100, 95, 95, 100), 1, false},
		"beyond an empty one": {d(100, 50, 50, 100), 2.9, false},
		"over all":            {d(100, 1, 2, 3), 3, true},
		"without bounds":      {d(100), 0, true},
	} {
		if seconds, over := c.of.Quantile(0.95); math.Abs(seconds-c.seconds) > 1e-9 || over != c.over {
			t.Errorf("%s: %v, %t, want %v, %t", name, seconds, over, c.seconds, c.over)
		}
	}
}

func TestSinceAndPlus(t *testing.T) {
	before := Counts{
		Sandboxes: map[string]Durations{"a": {Count: 4, Within: map[float64]float64{1: 3}}},
		Failed:    map[string]float64{"a": 2},
	}
	now := Counts{
		Sandboxes: map[string]Durations{"a": {Count: 9, Within: map[float64]float64{1: 5}}, "b": {Count: 1, Within: map[float64]float64{1: 1}}},
		Failed:    map[string]float64{"a": 3},
		Calls:     map[string]Durations{"pull_image": {Count: 1}},
	}
	after := now.Since(before)
	if a := after.Sandboxes["a"]; a.Count != 5 || a.Within[1] != 2 || after.Failed["a"] != 1 || after.Starts() != 6 || after.Calls["pull_image"].Count != 1 {
		t.Errorf("since then: %+v", after)
	}
	// The kubelet was restarted: it has counted less than before.
	if after := before.Since(now); after.Sandboxes["a"].Count != 4 || after.Failed["a"] != 2 {
		t.Errorf("since its restart: %+v", after)
	}
	// It was restarted, and some of its numbers are larger again than before.
	for name, restarted := range map[string]Counts{
		"a bucket":   {Sandboxes: map[string]Durations{"a": {Count: 20, Within: map[float64]float64{1: 2}}, "b": {Count: 7, Within: map[float64]float64{1: 7}}}},
		"no bucket":  {Sandboxes: map[string]Durations{"a": {Count: 20, Within: map[float64]float64{}}, "b": {Count: 7}}},
		"a handler":  {Sandboxes: map[string]Durations{"a": {Count: 2}, "b": {Count: 25}}},
		"no handler": {Sandboxes: map[string]Durations{"b": {Count: 27}}},
		"failures":   {Sandboxes: map[string]Durations{"a": {Count: 20, Within: map[float64]float64{1: 9}}, "b": {Count: 7, Within: map[float64]float64{1: 7}}}, Failed: map[string]float64{"a": 1}},
	} {
		if got := restarted.Since(now); got.Starts() != 27 || got.Sandboxes["a"].Within[1] != restarted.Sandboxes["a"].Within[1] || got.Failed["a"] != restarted.Failed["a"] {
			t.Errorf("%s shrank: %+v", name, got)
		}
	}
	both := now.Plus(before).Plus(Counts{})
	if a := both.Sandboxes["a"]; a.Count != 13 || a.Within[1] != 8 || both.Failed["a"] != 5 || both.Starts() != 14 {
		t.Errorf("together: %+v", both)
	}
	if now.Sandboxes["a"].Count != 9 || before.Sandboxes["a"].Within[1] != 3 {
		t.Error("what was given is changed")
	}
}
