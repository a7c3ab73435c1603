package lifecycle

import (
	"cmp"
	"time"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
)

// facts are what a handler's state follows from.
type facts struct {
	// configured is false for a handler that is gone from the configuration.
	configured bool
	// broken says why there is no usable Definition, or is empty.
	broken string
	// probed is false until there is a verdict; failure is its reason, or empty.
	probed  bool
	failure string
	intent  *Intent
}

// next is the state that follows from facts. What operators said goes before
// what probes found, and both are told; that a handler is gone goes before
// either. Pure.
func next(f facts) handler.State {
	unable := f.unable()
	switch {
	case !f.configured:
		return handler.State{Phase: handler.Draining, Reason: "no longer configured; removed with its last pod"}
	case f.intent != nil:
		return handler.State{Phase: f.intent.phase(), Reason: f.intent.told(unable)}
	case unable != "":
		return handler.State{Phase: handler.NotReady, Reason: unable}
	}
	return handler.State{Phase: handler.Ready}
}

func (f facts) unable() string {
	switch {
	case f.broken != "":
		return f.broken
	case !f.probed:
		return rollout.NotProbedYet
	}
	return f.failure
}

func (i *Intent) phase() handler.Phase {
	if i.Kind == Drain {
		return handler.Draining
	}
	return handler.Cordoned
}

func (i *Intent) told(unable string) string {
	reason := cmp.Or(i.Reason, "set by an operator")
	if unable != "" {
		reason += "; also not ready: " + unable
	}
	return reason
}

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
