package handler

import "time"

// Phase is where a handler stands in its life.
type Phase string

const (
	// Ready handlers accept pods.
	Ready Phase = "ready"
	// NotReady handlers are configured but cannot run pods; the reason says why.
	NotReady Phase = "not-ready"
	// Cordoned handlers accept no new pods because an operator said so.
	Cordoned Phase = "cordoned"
	// Draining handlers are cordoned, and gone from the configuration or
	// waiting to be empty.
	Draining Phase = "draining"
)

// State is a handler's phase and, unless it is ready, the reason in one line
// that an operator can act on.
type State struct {
	Phase  Phase
	Reason string
	// Since is when the phase or the reason changed.
	Since time.Time
}

// Same reports whether two states differ in nothing but their time.
func (s State) Same(o State) bool { return s.Phase == o.Phase && s.Reason == o.Reason }

// AcceptsPods says whether a new sandbox may be created under the handler.
// Sandboxes that exist are served in every phase.
func (s State) AcceptsPods() bool { return s.Phase == Ready }
