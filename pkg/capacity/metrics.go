package capacity

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Metrics are what a controller tells of itself. Its methods may be called concurrently.
type Metrics struct {
	leading, watching, nodes, failing prometheus.Gauge
	patches                           prometheus.Counter
	failures                          *prometheus.CounterVec
}

// NewMetrics registers them.
func NewMetrics(to prometheus.Registerer) *Metrics {
	m := &Metrics{
		leading:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_controller_leading", Help: "1 if this controller holds the lease and works, 0 if it waits."}),
		watching: prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_controller_watching", Help: "1 if this controller works and sees what becomes of nodes, pods and classes, 0 otherwise."}),
		nodes:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_controller_nodes", Help: "Nodes whose capacity this controller keeps; 0 if it waits."}),
		failing:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_controller_failing_nodes", Help: "Nodes whose capacity could not be set and is tried again."}),
		patches:  prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_controller_patches_total", Help: "Changes of the capacity of a node that the API server took."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_controller_patch_failures_total", Help: "Changes that the API server did not take, by the reason that it gave."}, []string{"reason"}),
	}
	to.MustRegister(m.leading, m.watching, m.nodes, m.failing, m.patches, m.failures)
	return m
}

// Failed counts a change that was not taken.
func (m *Metrics) Failed(err error) {
	m.failures.WithLabelValues(cmp.Or(string(apierrors.ReasonForError(err)), "Unreachable")).Inc()
}
