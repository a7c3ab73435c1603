package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/remote"
)

var (
	backendHealthDesc = prometheus.NewDesc("berth_backend_health",
		"1 if the backend CRI daemon is in the state, otherwise 0.", []string{"backend", "health"}, nil)
	backendListAgeDesc = prometheus.NewDesc("berth_backend_list_age_seconds",
		"Age of the last complete list of pods and containers from the backend CRI daemon; until the next one, last known entries are served.", []string{"backend"}, nil)
)

// remoteMetrics are counted when somebody asks. Labels are sockets of handlers.
type remoteMetrics struct{ pool *remote.Pool }

func (remoteMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- backendHealthDesc
	to <- backendListAgeDesc
}

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
