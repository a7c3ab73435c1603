package daemon

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/overhead"
)

var (
	overheadPodsDesc = prometheus.NewDesc("berth_handler_overhead_pods",
		"Pods whose overhead was measured; 0 means no data.", []string{"handler"}, nil)
	overheadMemoryDesc = prometheus.NewDesc("berth_handler_overhead_memory_bytes",
		"Memory of pods beyond their containers; quantile 1 is the largest.", []string{"handler", "quantile"}, nil)
	overheadCPUDesc = prometheus.NewDesc("berth_handler_overhead_cpu_cores",
		"CPU use of pods beyond their containers; quantile 1 is the largest.", []string{"handler", "quantile"}, nil)
	overheadDeclaredMemoryDesc = prometheus.NewDesc("berth_handler_overhead_declared_memory_bytes",
		"Memory that the kubelet reserves for pods beyond their containers: the smallest overhead declared by one of them; absent if none declares one.", []string{"handler"}, nil)
	overheadDeclaredCPUDesc = prometheus.NewDesc("berth_handler_overhead_declared_cpu_cores",
		"CPU that the kubelet reserves for pods beyond their containers: the smallest overhead declared by one of them; absent if none declares one.", []string{"handler"}, nil)
	overheadExceededDesc = prometheus.NewDesc("berth_handler_overhead_exceeds_declared",
		"1 if the 95th percentile of the handler's overhead is above what its pods declare, otherwise 0.", []string{"handler"}, nil)
)

// overheadMetrics are read when somebody asks, and not more often than the meter does.
type overheadMetrics struct {
	handlers *lifecycle.Manager
	meter    *overhead.Meter
}

func (overheadMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{overheadPodsDesc, overheadMemoryDesc, overheadCPUDesc, overheadDeclaredMemoryDesc, overheadDeclaredCPUDesc, overheadExceededDesc} {
		to <- d
	}
}

func (o overheadMetrics) Collect(to chan<- prometheus.Metric) {
	for _, h := range o.handlers.Handlers() {
		collectOverhead(to, o.meter.Of(context.Background(), h.Definition))
	}
}

func collectOverhead(to chan<- prometheus.Metric, r overhead.Report) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{r.Handler}, labels...)...)
	}
	if e := r.Live; e == nil {
		gauge(overheadPodsDesc, 0)
	} else {
		gauge(overheadPodsDesc, float64(e.Pods))
		for quantile, value := range quantiles(e.Memory) {
			gauge(overheadMemoryDesc, float64(value), quantile)
		}
		for quantile, value := range quantiles(e.CPU) {
			if e.CPUPods > 0 {
				gauge(overheadCPUDesc, float64(value)/1e9, quantile)
			}
		}
	}
	if r.Declared.Memory > 0 {
		gauge(overheadDeclaredMemoryDesc, float64(r.Declared.Memory))
	}
	if r.Declared.CPU > 0 {
		gauge(overheadDeclaredCPUDesc, float64(r.Declared.CPU)/1e3)
	}
	exceeded := 0.0
	if r.Above() != "" {
		exceeded = 1
	}
	gauge(overheadExceededDesc, exceeded)
}

func quantiles(d overhead.Distribution) map[string]uint64 {
	return map[string]uint64{"0.5": d.P50, "0.95": d.P95, "1": d.Max}
}
