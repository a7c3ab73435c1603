package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
)

var (
	sandboxesDesc = prometheus.NewDesc("berth_sandboxes",
		"Pod sandboxes that exist, in any state, by the handler that they were created with.", []string{"handler"}, nil)
	handlerDesc = prometheus.NewDesc("berth_handler_ready",
		"Whether a configured handler accepts new pods: 1 or 0.", []string{"handler"}, nil)
)

// nodeMetrics are counted when somebody asks. Labels are names of Definitions.
type nodeMetrics struct {
	registry *handler.Registry[router.Backend]
	router   *router.Router
}

// Describe implements prometheus.Collector.
func (nodeMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- sandboxesDesc
	to <- handlerDesc
}

// Collect implements prometheus.Collector. A handler without pods is counted
// as such, and one that is gone for as long as it has any.
func (n nodeMetrics) Collect(to chan<- prometheus.Metric) {
	live := n.router.Live()
	for _, r := range n.registry.Current().Routes() {
		name, ready := r.Definition.Name, 0.0
		if r.State.AcceptsPods() {
			ready = 1
		}
		live[name] += 0
		to <- prometheus.MustNewConstMetric(handlerDesc, prometheus.GaugeValue, ready, name)
	}
	for name, count := range live {
		to <- prometheus.MustNewConstMetric(sandboxesDesc, prometheus.GaugeValue, float64(count), name)
	}
}
