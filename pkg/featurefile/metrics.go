package featurefile

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// tally holds the metrics and the last error of the files.
type tally struct {
	current *prometheus.GaugeVec // without a value if the directory does not exist
	writes  *prometheus.CounterVec

	mu    sync.Mutex
	fault error
}

func newTally() *tally {
	t := &tally{
		current: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "berth_node_labels_current", Help: "1 if the NFD feature files are current, otherwise 0; absent without features.d."}, nil),
		writes:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_node_labels_writes_total", Help: "Writes of the NFD feature files, by result: ok or failed."}, []string{"outcome"}),
	}
	for _, outcome := range []string{"ok", "failed"} {
		t.writes.WithLabelValues(outcome)
	}
	return t
}

// setFault sets the metrics by the files' error; nil means that they are current.
func (t *tally) setFault(wrong error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fault = wrong
	if wrong == nil {
		t.current.WithLabelValues().Set(1)
	} else {
		t.current.WithLabelValues().Set(0)
	}
}

func (t *tally) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fault = nil
	t.current.Reset()
}

// Fault returns why the files are not current, or nil.
func (k *Keeper) Fault() error {
	k.tally.mu.Lock()
	defer k.tally.mu.Unlock()
	return k.tally.fault
}

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(to chan<- *prometheus.Desc) {
	k.tally.current.Describe(to)
	k.tally.writes.Describe(to)
}

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(to chan<- prometheus.Metric) {
	k.tally.current.Collect(to)
	k.tally.writes.Collect(to)
}
