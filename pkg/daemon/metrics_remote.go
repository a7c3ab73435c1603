package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/remote"
)

var (
	backendHealthDesc = prometheus.NewDesc("berth_backend_health",
		"Whether the CRI daemon that handlers lead to is in a state: 1 or 0.", []string{"backend", "health"}, nil)
	backendListAgeDesc = prometheus.NewDesc("berth_backend_list_age_seconds",
		"How long ago a CRI daemon last said which pods and containers it has; older ones are listed meanwhile.", []string{"backend"}, nil)
)

// remoteMetrics are counted when somebody asks. Labels are sockets of handlers.
type remoteMetrics struct{ pool *remote.Pool }

// Describe implements prometheus.Collector.
func (remoteMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- backendHealthDesc
	to <- backendListAgeDesc
}

// Collect implements prometheus.Collector.
func (m remoteMetrics) Collect(to chan<- prometheus.Metric) {
	for _, b := range m.pool.All() {
		now := b.Health().Phase
		for _, phase := range []remote.Phase{remote.Ready, remote.Connected, remote.Lagging, remote.Down} {
			value := 0.0
			if phase == now {
				value = 1
			}
			to <- prometheus.MustNewConstMetric(backendHealthDesc, prometheus.GaugeValue, value, b.ID(), string(phase))
		}
		if age, known := b.Age(); known {
			to <- prometheus.MustNewConstMetric(backendListAgeDesc, prometheus.GaugeValue, age.Seconds(), b.ID())
		}
	}
}
