package capacity

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Metrics holds a controller's metrics. Its methods may be called concurrently.
type Metrics struct {
	nodes, failing prometheus.Gauge
	patches        prometheus.Counter
	failures       *prometheus.CounterVec
	// working means that this controller has the lease and the first lists. unseen is the Unix time
	// of the last failed watch, in nanoseconds.
	working atomic.Bool
	unseen  atomic.Int64
}

// seenAfter is the time without a failed watch after which all watches count as open. client-go
// retries a failed watch within a minute.
const seenAfter = 90 * time.Second

// NewMetrics creates and registers Metrics.
func NewMetrics(to prometheus.Registerer) *Metrics {
	m := &Metrics{
		nodes:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_controller_nodes", Help: "Nodes whose capacity this controller keeps; 0 if it waits."}),
		failing:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_controller_failing_nodes", Help: "Nodes whose capacity could not be set and is tried again."}),
		patches:  prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_controller_patches_total", Help: "Changes of a node's capacity that the API server accepted."}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_controller_patch_failures_total", Help: "Failed changes of a node's capacity, by the API server's reason, or Unreachable."}, []string{"reason"}),
	}
	to.MustRegister(m.nodes, m.failing, m.patches, m.failures,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "berth_controller_leading", Help: "1 if this controller holds the lease and works, 0 if it waits."}, func() float64 {
			return truth(m.working.Load())
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "berth_controller_watching", Help: "1 if this controller works and no watch of nodes, pods or classes failed in the last 90 seconds, 0 otherwise."}, func() float64 {
			return truth(m.working.Load() && time.Since(time.Unix(0, m.unseen.Load())) > seenAfter)
		}))
	return m
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Failed counts a failed change.
func (m *Metrics) Failed(err error) {
	m.failures.WithLabelValues(cmp.Or(string(apierrors.ReasonForError(err)), "Unreachable")).Inc()
}
