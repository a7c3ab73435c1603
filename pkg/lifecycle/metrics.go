package lifecycle

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
)

var (
	generationDesc = prometheus.NewDesc("berth_config_generation",
		"Generation of the handler table that routes new pods; 1 when the daemon starts, grows with every change.", nil, nil)
	infoDesc = prometheus.NewDesc("berth_config_info",
		"Always 1; the label is the digest of the running configuration.", []string{"digest"}, nil)
	reloadSuccessDesc = prometheus.NewDesc("berth_config_last_reload_successful",
		"1 if the configuration files were accepted at the last start or reload, 0 if they were rejected because of an error.", nil, nil)
	reloadTimeDesc = prometheus.NewDesc("berth_config_last_reload_success_timestamp_seconds",
		"Unix time of the last successful configuration reload.", nil, nil)
	restartDesc = prometheus.NewDesc("berth_config_restart_needed_keys",
		"Number of changed keys that need a restart of the daemon.", nil, nil)
	polledDesc = prometheus.NewDesc("berth_config_files_polled",
		"1 if configuration files are polled because inotify cannot watch them, otherwise 0.", nil, nil)
	stateDesc = prometheus.NewDesc("berth_handler_state",
		"1 if the handler is in the state, otherwise 0.", []string{"handler", "state"}, nil)
	rolloutDesc = prometheus.NewDesc("berth_handler_rollout_state",
		"1 if the rollout of the handler's candidate binary is in the state, otherwise 0.", []string{"handler", "state"}, nil)
)

var phases = []handler.Phase{handler.Ready, handler.NotReady, handler.Cordoned, handler.Draining}

// Describe implements prometheus.Collector.
func (m *Manager) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, to) }

// Collect implements prometheus.Collector. All series exist from the start, so that rate() counts
// the first event.
func (m *Manager) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(generationDesc, float64(m.plan.Generation))
	gauge(infoDesc, 1, m.plan.Digest)
	gauge(reloadSuccessDesc, oneIf(!m.counts.failed))
	gauge(reloadTimeDesc, float64(m.counts.success.UnixMilli())/1000)
	gauge(restartDesc, float64(len(m.truth.pending)))
	gauge(polledDesc, oneIf(m.reloads.polls.Load()))
	for _, e := range m.plan.Entries {
		for _, phase := range phases {
			gauge(stateDesc, oneIf(e.State.Phase == phase), e.Definition.Name, string(phase))
		}
		label := m.truth.view(e.Definition.Name).Status().Label()
		for _, one := range rollout.Labels() {
			gauge(rolloutDesc, oneIf(label == one), e.Definition.Name, one)
		}
	}
	m.counts.reloads.Collect(to)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
