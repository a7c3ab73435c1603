package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/remote"
	"github.com/berth-cri/berth/pkg/router"
)

var (
	sandboxesDesc = prometheus.NewDesc("berth_sandboxes",
		"Pod sandboxes in any state, by handler.", []string{"handler"}, nil)
	runningDesc = prometheus.NewDesc("berth_starts_running",
		"Pod sandboxes being created, by handler.", []string{"handler"}, nil)
	queuedDesc = prometheus.NewDesc("berth_starts_queued",
		"Pod sandboxes waiting for max_parallel_starts of their handler.", []string{"handler"}, nil)
	refusedDesc = prometheus.NewDesc("berth_starts_refused_total",
		"Pod sandboxes rejected or given up, by the limit of their handler that was exceeded.", []string{"handler", "limit"}, nil)
	variantPodsDesc = prometheus.NewDesc("berth_variant_pods_total",
		"Pod sandboxes started, by handler and by binary: its stable one (stable) or the rollout candidate (next).", []string{"handler", "variant"}, nil)
	variantFailuresDesc = prometheus.NewDesc("berth_variant_failures_total",
		"Calls to create a sandbox, or to create or start a container, that failed in the runtime or its shim.", []string{"handler", "variant"}, nil)
	selfChecksDesc = prometheus.NewDesc("berth_self_check_pods_total",
		"Self-check pods run by probes, by handler and result: ok or failed.", []string{"handler", "outcome"}, nil)
	selfCheckTimeDesc = prometheus.NewDesc("berth_self_check_last_duration_seconds",
		"Duration of the last self-check pod, including removal.", []string{"handler"}, nil)
	handlerDesc = prometheus.NewDesc("berth_handler_ready",
		"1 if the configured handler accepts new pods, otherwise 0.", []string{"handler"}, nil)
)

// nodeMetrics are counted at each scrape. Labels are names of Definitions.
type nodeMetrics struct {
	registry   *handler.Registry[router.Backend]
	pods       *router.Pods
	selfChecks selfCheckRuns
}

type selfCheckRuns interface {
	Runs() map[string]probe.SelfCheckRuns
}

func (nodeMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- sandboxesDesc
	to <- handlerDesc
	to <- selfChecksDesc
	to <- selfCheckTimeDesc
	to <- runningDesc
	to <- queuedDesc
	to <- refusedDesc
	to <- variantPodsDesc
	to <- variantFailuresDesc
}

// Collect implements prometheus.Collector. A handler without pods is counted
// as such, and one that is gone for as long as it has any.
func (n nodeMetrics) Collect(to chan<- prometheus.Metric) {
	live := n.pods.Live()
	for _, r := range n.registry.Current().Routes() {
		name, ready := r.Definition.Name, 0.0
		if r.State.AcceptsPods() {
			ready = 1
		}
		live[name] += 0
		n.collectSelfChecks(to, r.Definition)
		to <- prometheus.MustNewConstMetric(handlerDesc, prometheus.GaugeValue, ready, name)
	}
	for name, count := range live {
		to <- prometheus.MustNewConstMetric(sandboxesDesc, prometheus.GaugeValue, float64(count), name)
	}
	for _, v := range n.pods.Variants() {
		to <- prometheus.MustNewConstMetric(variantPodsDesc, prometheus.CounterValue, float64(v.Pods), v.Handler, v.Variant)
		to <- prometheus.MustNewConstMetric(variantFailuresDesc, prometheus.CounterValue, float64(v.Failures), v.Handler, v.Variant)
	}
	for _, s := range n.pods.Starts() {
		to <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, float64(s.Running), s.Handler)
		to <- prometheus.MustNewConstMetric(queuedDesc, prometheus.GaugeValue, float64(s.Queued), s.Handler)
		for limit, count := range s.Refused {
			to <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(count), s.Handler, limit)
		}
	}
}

// collectSelfChecks tells of a handler's self-check pods, also if there were none.
func (n nodeMetrics) collectSelfChecks(to chan<- prometheus.Metric, d *handler.Definition) {
	var runs probe.SelfCheckRuns
	if n.selfChecks != nil {
		runs = n.selfChecks.Runs()[d.Name]
	}
	to <- prometheus.MustNewConstMetric(selfChecksDesc, prometheus.CounterValue, float64(runs.Good), d.Name, "ok")
	to <- prometheus.MustNewConstMetric(selfChecksDesc, prometheus.CounterValue, float64(runs.Bad), d.Name, "failed")
	to <- prometheus.MustNewConstMetric(selfCheckTimeDesc, prometheus.GaugeValue, runs.Took.Seconds(), d.Name)
}

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

var (
	backendHealthDesc = prometheus.NewDesc("berth_backend_health",
		"1 if the backend CRI daemon is in the state, otherwise 0.", []string{"backend", "health"}, nil)
	backendListAgeDesc = prometheus.NewDesc("berth_backend_list_age_seconds",
		"Age of the last complete list of pods and containers from the backend CRI daemon; until the next one, last known entries are served.", []string{"backend"}, nil)
)

// remoteMetrics are counted at each scrape. Labels are sockets of handlers.
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
