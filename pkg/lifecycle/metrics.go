package lifecycle

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/handler"
)

var (
	generationDesc = prometheus.NewDesc("berth_config_generation",
		"Number of the table that new pods are routed by; it grows with every change, and begins anew with the daemon.", nil, nil)
	infoDesc = prometheus.NewDesc("berth_config_info",
		"Always 1; the label is the digest of the configuration that is in force.", []string{"digest"}, nil)
	reloadsDesc = prometheus.NewDesc("berth_config_reloads_total",
		"Reloads of the configuration, by what asked for them and what came of it.", []string{"trigger", "outcome"}, nil)
	reloadFailedDesc = prometheus.NewDesc("berth_config_last_reload_failed",
		"Whether the last reload of the configuration changed nothing because of a mistake: 1 or 0.", nil, nil)
	reloadTimeDesc = prometheus.NewDesc("berth_config_last_success_timestamp_seconds",
		"When a configuration without mistakes was last put in force, in seconds since 1970.", nil, nil)
	restartDesc = prometheus.NewDesc("berth_config_restart_needed_keys",
		"Changed keys that are not in force until the daemon is started again.", nil, nil)
	polledDesc = prometheus.NewDesc("berth_config_files_polled",
		"Whether changed configuration files are looked for every few seconds, because the kernel has no inotify watches left: 1 or 0.", nil, nil)
	stateDesc = prometheus.NewDesc("berth_handler_state",
		"Whether a handler is in a state: 1 or 0.", []string{"handler", "state"}, nil)
	trialDesc = prometheus.NewDesc("berth_handler_trial",
		"Whether the trial of a handler's next binary is in a state: 1 or 0.", []string{"handler", "state"}, nil)
)

var (
	phases      = []handler.Phase{handler.Ready, handler.NotReady, handler.Cordoned, handler.Draining}
	trialStates = []string{string(TrialRunning), string(TrialNotReady), trialFailed, string(TrialAborted), string(TrialPromoted)}
)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{generationDesc, infoDesc, reloadsDesc, reloadFailedDesc, reloadTimeDesc, restartDesc, polledDesc, stateDesc, trialDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector. Every series that can be is there
// from the beginning, so that a rate sees the first event.
func (m *Manager) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(generationDesc, float64(m.plan.Generation))
	gauge(infoDesc, 1, m.plan.Digest)
	gauge(reloadFailedDesc, oneIf(m.counts.failed))
	gauge(reloadTimeDesc, float64(m.counts.success.UnixMilli())/1000)
	gauge(restartDesc, float64(len(m.truth.pending)))
	gauge(polledDesc, oneIf(m.polls.Load()))
	for _, e := range m.plan.Entries {
		for _, phase := range phases {
			gauge(stateDesc, oneIf(e.State.Phase == phase), e.Definition.Name, string(phase))
		}
		trial := m.truth.trial(e.Definition.Name)
		for _, state := range trialStates {
			gauge(trialDesc, oneIf(trial.shown() == state), e.Definition.Name, state)
		}
	}
	for _, trigger := range []Trigger{TriggerSignal, TriggerFiles, TriggerAdmin} {
		for _, outcome := range []string{outcomeChanged, outcomeUnchanged, outcomeFailed} {
			to <- prometheus.MustNewConstMetric(reloadsDesc, prometheus.CounterValue,
				float64(m.counts.reloads[countKey{trigger, outcome}]), string(trigger), outcome)
		}
	}
}

// trialFailed is the state, in metrics, of a trial that ended by itself: nobody need
// be told of one that an operator aborted.
const trialFailed = "failed"

func (t *Trial) shown() string {
	switch {
	case t == nil:
		return ""
	case t.State == TrialAborted && t.ByItself:
		return trialFailed
	}
	return string(t.State)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
