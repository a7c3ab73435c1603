package observe

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/internal/test"
)

// Calls of unknown methods must not add labels to the metrics.
func TestMadeUpCallsHaveOneLabel(t *testing.T) {
	r := prometheus.NewRegistry()
	m := newRPCMetrics(r)
	for _, rpc := range []string{"Version", "StreamImages", "Nonsense", "Nonsense2", ""} {
		m.observe(rpc, "", "", nil, 0)
	}
	families := test.Value(r.Gather())(t)
	got := map[string]uint64{}
	for _, f := range families {
		for _, one := range f.GetMetric() {
			for _, l := range one.GetLabel() {
				if f.GetName() == "berth_rpc_duration_seconds" && l.GetName() == "rpc" {
					got[l.GetValue()] = one.GetHistogram().GetSampleCount()
				}
			}
		}
	}
	if want := map[string]uint64{"Version": 1, "StreamImages": 1, "other": 3}; !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}
