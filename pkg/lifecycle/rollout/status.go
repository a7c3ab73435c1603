package rollout

// State is where the rollout of a candidate stands.
type State string

const (
	// Running gives the candidate to its share of new pods.
	Running State = "running"
	// NotReady gives it to none, because a probe of it failed.
	NotReady State = "not-ready"
	// Aborted gives it to none, for good.
	Aborted State = "aborted"
	// Promoted gives it to all.
	Promoted State = "promoted"
)

// NotProbedYet is the reason of a handler, or of a candidate, that nothing is known about.
const NotProbedYet = "the runtime has not been probed yet"

// Status is that of a handler's rollout.
type Status struct {
	Path    string `json:"path"`
	Percent int    `json:"percent"`
	State   State  `json:"state"`
	// Reason says why it is not running.
	Reason string `json:"reason,omitempty"`
	// ByItself says that too many pods failed: no operator ended it.
	ByItself bool `json:"by_itself,omitempty"`
}

// Fault is why the candidate is not rolled out as configured, if no operator wanted that.
func (s *Status) Fault() string {
	if s == nil || s.State == Aborted && !s.ByItself || s.Reason == NotProbedYet {
		return ""
	}
	if s.State == Aborted || s.State == NotReady {
		return s.Reason
	}
	return ""
}

// labelFailed is the label of a rollout that was aborted automatically: nobody need be
// told of one that an operator aborted.
const labelFailed = "failed"

// Labels are all that Label can return, but for the empty one.
func Labels() []string {
	return []string{string(Running), string(NotReady), labelFailed, string(Aborted), string(Promoted)}
}

// Label is the state as metrics tell it; empty without a rollout.
func (s *Status) Label() string {
	switch {
	case s == nil:
		return ""
	case s.State == Aborted && s.ByItself:
		return labelFailed
	}
	return string(s.State)
}
