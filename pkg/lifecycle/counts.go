package lifecycle

import "time"

// counts are what the metrics tell about reloads.
type counts struct {
	reloads map[countKey]int
	// success is when the configuration in force was read, by a start or reload.
	success time.Time
	failed  bool
}

type countKey struct {
	trigger Trigger
	outcome string
}

// Outcomes of reloads, as metrics tell them.
const (
	outcomeChanged   = "changed"
	outcomeUnchanged = "unchanged"
	outcomeFailed    = "failed"
)

func (c *counts) reloaded(o *Outcome) {
	outcome := outcomeUnchanged
	switch {
	case o.Error != nil:
		outcome = outcomeFailed
	case o.Changed:
		outcome = outcomeChanged
	}
	c.reloads[countKey{o.Trigger, outcome}]++
	if c.failed = o.Error != nil; !c.failed {
		c.success = o.At
	}
}
