package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// rpcLabels have few values: the RPCs of the CRI and "other", the names of Definitions,
// BinaryStable and BinaryCandidate of package handler, and the codes of gRPC.
var rpcLabels = []string{"rpc", "handler", "binary", "code"}

// rpcBuckets, in seconds, are narrow from cached answers to starts of pods, and end at
// clients' timeouts.
var rpcBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30, 120}

type rpcMetrics struct {
	duration *prometheus.HistogramVec
	steps    *prometheus.HistogramVec
}

func newRPCMetrics(r prometheus.Registerer) *rpcMetrics {
	m := &rpcMetrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_rpc_duration_seconds",
			Help:    "Time from the arrival of a CRI call to its response; its count is the number of completed calls.",
			Buckets: rpcBuckets,
		}, rpcLabels),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_step_duration_seconds",
			Help:    "Time of the parts of CRI calls, such as the network of RunPodSandbox.",
			Buckets: rpcBuckets,
		}, stepLabels),
	}
	r.MustRegister(m.duration, m.steps)
	return m
}

// stepLabels have few values: package step defines the steps.
var stepLabels = []string{"rpc", "handler", "step"}

func (m *rpcMetrics) observe(rpc, handler, binary string, err error, took time.Duration) {
	m.duration.WithLabelValues(label(rpc), handler, binary, status.Code(err).String()).Observe(took.Seconds())
}
