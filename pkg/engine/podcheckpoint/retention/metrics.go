package retention

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"
)

var (
	countDesc = prometheus.NewDesc("berth_pod_checkpoints",
		"Whole checkpoints of pods below pod_checkpoints.directory.", nil, nil)
	bytesDesc = prometheus.NewDesc("berth_pod_checkpoints_bytes",
		"Bytes of the files of whole checkpoints below pod_checkpoints.directory.", nil, nil)
	damagedDesc = prometheus.NewDesc("berth_pod_checkpoints_damaged",
		"Directories below pod_checkpoints.directory that are not whole checkpoints, except for those being written; they are never removed.", nil, nil)
	exceededDesc = prometheus.NewDesc("berth_pod_checkpoints_exceeded",
		"1 if more checkpoints of pods are kept than pod_checkpoints allows, otherwise 0.", nil, nil)
)

// Operation is what is done with pods.
type Operation string

// The operations.
const (
	Write   Operation = "checkpoint"
	Restore Operation = "restore"
)

const (
	ok = "ok"
	// refused is what no checkpoint can be made of, or no pod.
	refused = "refused"
	failed  = "failed"
)

// buckets are in seconds: both take as long as the disk does.
var buckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// tally is what has happened since the start. Its series are there from then on, so that the first
// failure is an increase.
type tally struct {
	removals  *prometheus.CounterVec
	durations *prometheus.HistogramVec
}

func newTally() tally {
	t := tally{
		removals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_pod_checkpoint_removals_total",
			Help: "Checkpoints of pods that were over a bound, by its key in pod_checkpoints and by whether they were removed: ok or failed.",
		}, []string{"limit", "outcome"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_pod_checkpoint_duration_seconds",
			Help:    "Time that checkpoints of pods took to write (checkpoint), and pods to be made of one (restore), by result: ok, refused or failed.",
			Buckets: buckets,
		}, []string{"operation", "outcome"}),
	}
	for _, r := range Reasons {
		for _, outcome := range []string{ok, failed} {
			t.removals.WithLabelValues(string(r), outcome)
		}
	}
	for _, o := range []Operation{Write, Restore} {
		for _, outcome := range []string{ok, refused, failed} {
			t.durations.WithLabelValues(string(o), outcome)
		}
	}
	return t
}

func (t tally) removed(r Reason, done bool) {
	outcome := failed
	if done {
		outcome = ok
	}
	t.removals.WithLabelValues(string(r), outcome).Inc()
}

// Ended counts a call that took so long and ended with err.
func (k *Keeper) Ended(o Operation, took time.Duration, err error) {
	k.tally.durations.WithLabelValues(string(o), outcome(err)).Observe(took.Seconds())
}

// outcome tells the caller's mistakes from failures. Pure.
func outcome(err error) string {
	switch {
	case err == nil:
		return ok
	case errdefs.IsInvalidArgument(err), errdefs.IsNotFound(err), errdefs.IsNotImplemented(err), errdefs.IsFailedPrecondition(err):
		return refused
	}
	return failed
}

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(to chan<- *prometheus.Desc) {
	to <- countDesc
	to <- bytesDesc
	to <- damagedDesc
	to <- exceededDesc
	k.tally.removals.Describe(to)
	k.tally.durations.Describe(to)
}

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(to chan<- prometheus.Metric) {
	s, exceeded := k.State(context.Background()), 0.0
	if s.Exceeded {
		exceeded = 1
	}
	to <- prometheus.MustNewConstMetric(countDesc, prometheus.GaugeValue, float64(s.Count))
	to <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(s.Bytes))
	to <- prometheus.MustNewConstMetric(damagedDesc, prometheus.GaugeValue, float64(len(s.Damaged)))
	to <- prometheus.MustNewConstMetric(exceededDesc, prometheus.GaugeValue, exceeded)
	k.tally.removals.Collect(to)
	k.tally.durations.Collect(to)
}
