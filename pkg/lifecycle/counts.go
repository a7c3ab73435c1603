package lifecycle

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// counts holds the metrics of reloads.
type counts struct {
	reloads *prometheus.CounterVec // by trigger and outcome
	// success is when the current configuration was read, by a start or reload.
	success time.Time
	failed  bool
}

// Outcomes of reloads, as label values.
const (
	outcomeChanged   = "changed"
	outcomeUnchanged = "unchanged"
	outcomeFailed    = "failed"
)

func newCounts() counts {
	c := counts{reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_config_reloads_total", Help: "Configuration reloads, by trigger and result.",
	}, []string{"trigger", "outcome"})}
	for _, trigger := range triggers {
		for _, outcome := range []string{outcomeChanged, outcomeUnchanged, outcomeFailed} {
			c.reloads.WithLabelValues(string(trigger), outcome)
		}
	}
	return c
}

func (c *counts) reloaded(o *Outcome) {
	outcome := outcomeUnchanged
	switch {
	case o.Error != nil:
		outcome = outcomeFailed
	case o.Changed:
		outcome = outcomeChanged
	}
	if o.Trigger != TriggerStart {
		c.reloads.WithLabelValues(string(o.Trigger), outcome).Inc()
	}
	if c.failed = o.Error != nil; !c.failed {
		c.success = o.At
	}
}
