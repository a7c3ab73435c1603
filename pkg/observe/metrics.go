package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// rpcLabels are the same on both metrics. Their values are bounded: RPCs by the
// CRI ("other" for what it does not have), handlers by the configuration, codes by gRPC. variant is whether the pod
// that a call is about has its handler's own binary or the candidate.
var rpcLabels = []string{"rpc", "handler", "variant", "code"}

// rpcBuckets, in seconds, are close where calls from memory and the start of
// pods are told apart, and end where clients give up.
var rpcBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30, 120}

type rpcMetrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	steps    *prometheus.HistogramVec
}

func newRPCMetrics(r prometheus.Registerer) *rpcMetrics {
	m := &rpcMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_rpc_total",
			Help: "Completed CRI calls.",
		}, rpcLabels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_rpc_duration_seconds",
			Help:    "Time from the arrival of a CRI call to its response.",
			Buckets: rpcBuckets,
		}, rpcLabels),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_step_duration_seconds",
			Help:    "Time of the parts of CRI calls, such as the network of RunPodSandbox.",
			Buckets: rpcBuckets,
		}, stepLabels),
	}
	r.MustRegister(m.total, m.duration, m.steps)
	return m
}

// stepLabels are bounded: steps by package step.
var stepLabels = []string{"rpc", "handler", "step"}

func (m *rpcMetrics) observe(rpc, handler, variant string, err error, took time.Duration) {
	code := status.Code(err).String()
	rpc = label(rpc)
	m.total.WithLabelValues(rpc, handler, variant, code).Inc()
	m.duration.WithLabelValues(rpc, handler, variant, code).Observe(took.Seconds())
}
