package featurefile

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	currentDesc = prometheus.NewDesc("berth_node_labels_current",
		"1 if the NFD feature files are current, otherwise 0; absent without features.d.", nil, nil)
	writesDesc = prometheus.NewDesc("berth_node_labels_writes_total",
		"Writes of the NFD feature files, by result: ok or failed.", []string{"outcome"}, nil)
)

// tally is what metrics tell.
type tally struct {
	mu         sync.Mutex
	wanted     bool  // there is a directory
	wrong      error // why the files are not true, if they are not
	ok, failed int
}

// wrote counts a write.
func (t *tally) wrote(ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok {
		t.ok++
	} else {
		t.failed++
	}
}

// is says that the files are true, or why not.
func (t *tally) is(wrong error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted, t.wrong = true, wrong
}

func (t *tally) fault() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wrong
}

func (t *tally) unwanted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted, t.wrong = false, nil
}

// Describe implements prometheus.Collector.
func (*Keeper) Describe(to chan<- *prometheus.Desc) {
	to <- currentDesc
	to <- writesDesc
}

// Collect implements prometheus.Collector.
func (k *Keeper) Collect(to chan<- prometheus.Metric) {
	k.tally.mu.Lock()
	defer k.tally.mu.Unlock()
	if k.tally.wanted {
		current := 0.0
		if k.tally.wrong == nil {
			current = 1
		}
		to <- prometheus.MustNewConstMetric(currentDesc, prometheus.GaugeValue, current)
	}
	to <- prometheus.MustNewConstMetric(writesDesc, prometheus.CounterValue, float64(k.tally.ok), "ok")
	to <- prometheus.MustNewConstMetric(writesDesc, prometheus.CounterValue, float64(k.tally.failed), "failed")
}
