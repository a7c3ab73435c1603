package daemon

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/overhead"
	"github.com/berth-cri/berth/pkg/remote"
)

// metric describes a value that is read at each scrape.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gauge(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

func counter(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func (m metric) put(to chan<- prometheus.Metric, value float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
}

// scraped reads metrics at each scrape.
type scraped func(to chan<- prometheus.Metric)

// Describe implements prometheus.Collector. It describes nothing, so the metrics are checked when
// they are collected.
func (scraped) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s scraped) Collect(to chan<- prometheus.Metric) { s(to) }

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// These metrics are labeled with names of handlers.
var (
	sandboxes = gauge("berth_sandboxes",
		"Pod sandboxes in any state, by handler.", "handler")
	startsRunning = gauge("berth_starts_running",
		"Pod sandboxes being created, by handler.", "handler")
	startsQueued = gauge("berth_starts_queued",
		"Pod sandboxes waiting for max_parallel_starts of their handler.", "handler")
	startsRefused = counter("berth_starts_refused_total",
		"Starts of pod sandboxes that were rejected, or aborted by start_timeout, by the exceeded limit.", "handler", "limit")
	podsStarted = counter("berth_handler_pod_starts_total",
		"Starts of pod sandboxes, failed ones included, by handler and binary (stable, or candidate of a rollout).", "handler", "binary")
	startFailures = counter("berth_handler_start_failures_total",
		"Calls to create a sandbox, or to create or start a container, that failed in the runtime or its shim, by handler and binary.", "handler", "binary")
	selfChecks = counter("berth_self_check_pods_total",
		"Self-check pods run by probes, by handler and result: ok or failed.", "handler", "outcome")
	selfCheckTime = gauge("berth_self_check_last_duration_seconds",
		"Duration of the last self-check pod, including removal.", "handler")
	handlerReady = gauge("berth_handler_ready",
		"1 if the configured handler accepts new pods, otherwise 0.", "handler")
)

// handlerMetrics includes handlers without pods, and removed handlers while they have pods.
func (n *node) handlerMetrics(to chan<- prometheus.Metric) {
	pods, checked := n.pods.SandboxCounts(), n.prober.Runs()
	for _, r := range n.registry.Current().Routes() {
		name := r.Definition.Name
		pods[name] += 0
		handlerReady.put(to, oneIf(r.State.AcceptsPods()), name)
		runs := checked[name]
		selfChecks.put(to, float64(runs.Good), name, "ok")
		selfChecks.put(to, float64(runs.Bad), name, "failed")
		selfCheckTime.put(to, runs.Took.Seconds(), name)
	}
	for name, count := range pods {
		sandboxes.put(to, float64(count), name)
	}
	for _, v := range n.pods.BinaryStarts() {
		podsStarted.put(to, float64(v.Pods), v.Handler, v.Binary)
		startFailures.put(to, float64(v.Failures), v.Handler, v.Binary)
	}
	for _, s := range n.pods.Starts() {
		startsRunning.put(to, float64(s.Running), s.Handler)
		startsQueued.put(to, float64(s.Queued), s.Handler)
		for limit, count := range s.Refused {
			startsRefused.put(to, float64(count), s.Handler, limit)
		}
	}
}

var (
	imageFetched = counter("berth_image_fetched_bytes_total",
		"Bytes received from image registries; counted during a pull.")
	imagePulls = gauge("berth_image_pulls_running",
		"Image pulls and imports that have not ended.")
)

// imageMetrics are those of the engine's images, zero without an image store.
func (n *node) imageMetrics(to chan<- prometheus.Metric) {
	fetched, running := 0.0, 0.0
	if store := n.engine.Images(); store != nil {
		fetched, running = float64(store.Fetched()), float64(store.Running())
	}
	imageFetched.put(to, fetched)
	imagePulls.put(to, running)
}

// These metrics are labeled with sockets of handlers.
var (
	backendHealth = gauge("berth_backend_health",
		"1 if the backend CRI daemon is in the state, otherwise 0.", "backend", "health")
	backendListAge = gauge("berth_backend_list_age_seconds",
		"Age of the last complete list of pods and containers from the backend CRI daemon; while the daemon does not answer, this list is served.", "backend")
)

func (n *node) backendMetrics(to chan<- prometheus.Metric) {
	for _, b := range n.remotes.pool.All() {
		now := b.Health().Phase
		for _, phase := range []remote.Phase{remote.Ready, remote.Connected, remote.Lagging, remote.Down} {
			backendHealth.put(to, oneIf(phase == now), b.ID(), string(phase))
		}
		if age, known := b.Age(); known {
			backendListAge.put(to, age.Seconds(), b.ID())
		}
	}
}

var (
	overheadPods = gauge("berth_handler_overhead_pods",
		"Pods whose overhead was measured; 0 means no data.", "handler")
	overheadMemory = gauge("berth_handler_overhead_memory_bytes",
		"Memory of pods beyond their containers; quantile 1 is the largest.", "handler", "quantile")
	overheadCPU = gauge("berth_handler_overhead_cpu_cores",
		"CPU use of pods beyond their containers; quantile 1 is the largest.", "handler", "quantile")
	overheadDeclaredMemory = gauge("berth_handler_overhead_declared_memory_bytes",
		"Memory that the kubelet reserves for pods beyond their containers: the smallest overhead that a pod declares; absent if no pod declares any.", "handler")
	overheadDeclaredCPU = gauge("berth_handler_overhead_declared_cpu_cores",
		"CPU that the kubelet reserves for pods beyond their containers: the smallest overhead that a pod declares; absent if no pod declares any.", "handler")
	overheadExceeded = gauge("berth_handler_overhead_exceeds_declared",
		"1 if the 95th percentile of the handler's overhead is above what its pods declare, otherwise 0.", "handler")
)

// overheadMetrics are read at each scrape; the meter limits how often it samples pods.
func (n *node) overheadMetrics(to chan<- prometheus.Metric) {
	for _, h := range n.handlers.Handlers() {
		putOverhead(to, n.meter.Of(context.Background(), h.Definition))
	}
}

func putOverhead(to chan<- prometheus.Metric, r overhead.Report) {
	pods := 0
	if e := r.Live; e != nil {
		pods = e.Pods
		for quantile, value := range quantiles(e.Memory) {
			overheadMemory.put(to, float64(value), r.Handler, quantile)
		}
		for quantile, value := range quantiles(e.CPU) {
			if e.CPUPods > 0 {
				overheadCPU.put(to, float64(value)/1e9, r.Handler, quantile)
			}
		}
	}
	overheadPods.put(to, float64(pods), r.Handler)
	if r.Declared.Memory > 0 {
		overheadDeclaredMemory.put(to, float64(r.Declared.Memory), r.Handler)
	}
	if r.Declared.CPU > 0 {
		overheadDeclaredCPU.put(to, float64(r.Declared.CPU)/1e3, r.Handler)
	}
	overheadExceeded.put(to, oneIf(r.Above() != ""), r.Handler)
}

func quantiles(d overhead.Distribution) map[string]uint64 {
	return map[string]uint64{"0.5": d.P50, "0.95": d.P95, "1": d.Max}
}
