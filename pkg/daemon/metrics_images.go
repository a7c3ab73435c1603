package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/engine/image"
)

var (
	fetchedDesc = prometheus.NewDesc("berth_image_fetched_bytes_total",
		"Bytes received from image registries, while they are received.", nil, nil)
	pullsDesc = prometheus.NewDesc("berth_image_pulls_running",
		"Image pulls and imports that have not ended.", nil, nil)
)

// imageMetrics are those of the embedded backend's images, none if store is nil.
type imageMetrics struct{ store *image.Store }

func (imageMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- fetchedDesc
	to <- pullsDesc
}

func (m imageMetrics) Collect(to chan<- prometheus.Metric) {
	fetched, running := 0.0, 0.0
	if m.store != nil {
		fetched, running = float64(m.store.Fetched()), float64(m.store.Running())
	}
	to <- prometheus.MustNewConstMetric(fetchedDesc, prometheus.CounterValue, fetched)
	to <- prometheus.MustNewConstMetric(pullsDesc, prometheus.GaugeValue, running)
}
