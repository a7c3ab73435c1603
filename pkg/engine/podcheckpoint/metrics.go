package podcheckpoint

import (
	"time"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"
)

// Operations.
const (
	write   = "checkpoint"
	restore = "restore"
)

// Outcomes.
const (
	ok = "ok"
	// refused is for a request or a pod that is at fault.
	refused = "refused"
	failed  = "failed"
)

// buckets are in seconds: both operations take as long as the disk does.
var buckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// NewDurations makes the metric of checkpoints and restores, with all series from the start on, so
// that the first failure is an increase.
func NewDurations() *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_pod_checkpoint_duration_seconds",
		Help:    "Time that checkpoints of pods took to write (checkpoint), and pods to be made of one (restore), by result: ok, refused or failed.",
		Buckets: buckets,
	}, []string{"operation", "outcome"})
	for _, operation := range []string{write, restore} {
		for _, outcome := range []string{ok, refused, failed} {
			v.WithLabelValues(operation, outcome)
		}
	}
	return v
}

// observe counts a call that took so long and returned err.
func observe(v *prometheus.HistogramVec, operation string, took time.Duration, err error) {
	v.WithLabelValues(operation, outcome(err)).Observe(took.Seconds())
}

// outcome separates the caller's mistakes from failures. Pure.
func outcome(err error) string {
	switch {
	case err == nil:
		return ok
	case errdefs.IsInvalidArgument(err), errdefs.IsNotFound(err), errdefs.IsNotImplemented(err), errdefs.IsFailedPrecondition(err):
		return refused
	}
	return failed
}
