package rollout

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/statefile"
)

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
	// Reason is why it is not running.
	Reason string `json:"reason,omitempty"`
	// ByItself is set if too many pods failed: no operator ended it.
	ByItself bool `json:"by_itself,omitempty"`
}

// Fault is why the candidate is not rolled out as configured, if no operator wanted that.
func (s *Status) Fault() string {
	if s == nil || s.Reason == NotProbedYet || s.State != NotReady && !s.ByItself {
		return ""
	}
	return s.Reason
}

// labelFailed is the label of a rollout that was aborted automatically. One that an
// operator aborted needs no alert.
const labelFailed = "failed"

// Labels are all that Label can return, but for the empty one.
func Labels() []string {
	return []string{string(Running), string(NotReady), labelFailed, string(Aborted), string(Promoted)}
}

// Label is the state in metrics; empty without a rollout.
func (s *Status) Label() string {
	switch {
	case s == nil:
		return ""
	case s.State == Aborted && s.ByItself:
		return labelFailed
	}
	return string(s.State)
}

// Decision is what became of a rollout. It holds as long as exactly that candidate,
// with that share and those limits, is configured, and is the same program: the
// files have the last word.
type Decision struct {
	State  State             `json:"state"`
	Reason string            `json:"reason,omitempty"`
	Since  time.Time         `json:"since"`
	On     handler.Candidate `json:"on"`
	// ByItself says that too many pods failed: no operator said so.
	ByItself bool `json:"by_itself,omitempty"`
	// SHA256 is that of the program; empty if it was not known.
	SHA256 string `json:"sha256,omitempty"`
}

// Known implements statefile.Decision.
func (d *Decision) Known() bool { return d != nil && (d.State == Aborted || d.State == Promoted) }

// File is where Decisions are kept, in a directory which survives a reboot.
func File(dir string) statefile.ByHandler[*Decision] {
	return statefile.ByHandler[*Decision]{
		Path:     filepath.Join(dir, "rollouts.json"),
		Unusable: "read rollout decisions; remove the file, and remove candidate from handlers whose rollout was aborted",
	}
}

// Probed is what probes found of a candidate.
type Probed struct {
	// Known is false until a probe has ended. Failure is why the last one failed, or empty.
	Known   bool
	Failure string
	// SHA256 is that of the program that the last good probe saw, and FailedSHA256
	// that of the one that the last probe failed of. Either is empty if it is not known.
	SHA256, FailedSHA256 string
}

// View is what is known about the rollout of one handler at one moment. Its methods
// decide what follows from that; all of them are pure.
type View struct {
	// Definition is the handler's, nil if it has none that can be used.
	Definition *handler.Definition
	// Decision is the last one about the handler, nil if there is none. It may be
	// about another rollout.
	Decision *Decision
	// Probed is about the candidate.
	Probed Probed
}

// key tells one rollout of a handler from another.
type key struct {
	// digest is that of the Definition of pods on the candidate.
	digest string
	// sha256 is the candidate's, empty while it is not known.
	sha256 string
}

// Definitions are d and, if it has a candidate, the Definition of pods on that.
func Definitions(d *handler.Definition) []*handler.Definition {
	if d.Candidate == nil {
		return []*handler.Definition{d}
	}
	return []*handler.Definition{d, d.WithCandidate()}
}

func (v View) configured() bool { return v.Definition != nil && v.Definition.Candidate != nil }

// key is that of a rollout that is configured.
func (v View) key() key {
	return key{digest: v.Definition.WithCandidate().Digest(), sha256: v.Probed.SHA256}
}

// decided is the Decision that holds, or nil.
func (v View) decided() *Decision {
	r := v.Decision
	if r == nil || !v.configured() || r.On != *v.Definition.Candidate || !mayBe(r.SHA256, v.Probed.SHA256) {
		return nil
	}
	return r
}

// open says that there is a rollout, and that nothing was decided about it.
func (v View) open() bool { return v.configured() && v.decided() == nil }

// mayBe says whether two programs can be the same; one that is not known can be any.
func mayBe(a, b string) bool { return a == b || a == "" || b == "" }

// Routes is the Definition that new pods get, and the candidate that a share of
// them gets instead, or nil.
func (v View) Routes() (main, candidate *handler.Definition) {
	if !v.configured() {
		return v.Definition, nil
	}
	candidate = v.Definition.WithCandidate()
	switch r := v.decided(); {
	case r != nil && r.State == Promoted:
		return candidate, nil
	case r != nil, !v.Probed.Known, v.Probed.Failure != "":
		return v.Definition, nil
	}
	return v.Definition, candidate
}

// Status tells where the rollout stands; nil if there is none.
func (v View) Status() *Status {
	if !v.configured() {
		return nil
	}
	s := &Status{Path: v.Definition.Candidate.Path, Percent: v.Definition.Candidate.Percent, State: Running}
	// What was said of a program is no word about another in its place; if that
	// goes again, the word counts.
	if r := v.decided(); r != nil && (r.State != Aborted || mayBe(r.SHA256, v.Probed.FailedSHA256)) {
		s.State, s.Reason, s.ByItself = r.State, r.Reason, r.ByItself
		return s
	}
	switch {
	case !v.Probed.Known:
		s.State, s.Reason = NotReady, NotProbedYet
	case v.Probed.Failure != "":
		s.State, s.Reason = NotReady, v.Probed.Failure
	}
	return s
}

// decidable says why an operator cannot promote or abort, or nothing.
func (v View) decidable(name string) error {
	if d := v.Definition; d != nil && d.Type == handler.CRI {
		return fmt.Errorf("handler %q belongs to another daemon, so berth cannot roll out its binary; configure a second handler for the new one: %w", name, errdefs.ErrFailedPrecondition)
	}
	if !v.configured() {
		return fmt.Errorf("handler %q has no rollout; configure candidate = { runtime_path = …, percent = … } under [runtimes.%s]: %w", name, name, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// end is the wish to promote or abort.
type end struct {
	state  State
	reason string
	on     handler.Candidate
	// of is the rollout of which too many pods failed; nil if an operator said so.
	of *key
}

// decide is the Decision that follows from a wish, or why it cannot be granted.
func (v View) decide(name string, e end, now time.Time) (*Decision, error) {
	if !v.configured() || *v.Definition.Candidate != e.on || e.of != nil && !mayBe(e.of.sha256, v.Probed.SHA256) {
		return nil, fmt.Errorf("the configuration of handler %q changed during this call; check it and try again: %w", name, errdefs.ErrFailedPrecondition)
	}
	if e.state == Promoted && (!v.Probed.Known || v.Probed.Failure != "") {
		return nil, fmt.Errorf("cannot promote the candidate of handler %q: not ready: %s: %w", name, v.Probed.Failure, errdefs.ErrFailedPrecondition)
	}
	if r := v.decided(); r != nil && r.State == Aborted && r.ByItself && e.of == nil {
		if e.state == Promoted {
			return nil, fmt.Errorf("cannot promote the candidate of handler %q: its rollout was aborted: %s; install a corrected binary or change candidate, and a new rollout begins: %w", name, r.Reason, errdefs.ErrFailedPrecondition)
		}
		if e.reason != "" {
			return nil, fmt.Errorf("the rollout of handler %q was already aborted: %s; that reason stays, so abort without one: %w", name, r.Reason, errdefs.ErrFailedPrecondition)
		}
		return r, nil
	}
	if e.state == Aborted && e.reason == "" {
		e.reason = "aborted by an operator"
	}
	return &Decision{State: e.state, Reason: e.reason, Since: now, On: e.on, ByItself: e.of != nil, SHA256: v.Probed.SHA256}, nil
}

// Outdated are the handlers, sorted, whose Decisions are on rollouts that are no
// more. A handler may have its rollout still if there are files that cannot be used. Pure.
func Outdated(decisions map[string]*Decision, view func(name string) View, unusable bool) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(decisions)) {
		v := view(name)
		if v.Definition == nil && unusable {
			continue
		}
		if v.decided() == nil {
			names = append(names, name)
		}
	}
	return names
}
