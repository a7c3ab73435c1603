package rollout

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/statefile"
)

// State is the state of a rollout.
type State string

const (
	// Running gives the candidate to its share of new pods.
	Running State = "running"
	// NotReady gives the candidate to no pods: its probe failed or is not done.
	NotReady State = "not-ready"
	// Aborted gives the candidate to no pods until the candidate is changed.
	Aborted State = "aborted"
	// Promoted gives the candidate to all new pods.
	Promoted State = "promoted"
)

// NotProbedYet is the reason of a handler or candidate before its first probe.
const NotProbedYet = "the runtime has not been probed yet"

// Status is the status of a handler's rollout.
type Status struct {
	Path    string `json:"path"`
	Percent int    `json:"percent"`
	State   State  `json:"state"`
	// Reason is why the rollout is not running.
	Reason string `json:"reason,omitempty"`
	// ByItself is set if berth aborted the rollout because too many pods failed.
	ByItself bool `json:"by_itself,omitempty"`
}

// Fault returns why the candidate is not rolled out as configured; "" if an operator decided it.
func (s *Status) Fault() string {
	if s == nil || s.Reason == NotProbedYet || s.State != NotReady && !s.ByItself {
		return ""
	}
	return s.Reason
}

// labelFailed is the label of a rollout that was aborted automatically. A rollout aborted by an
// operator needs no alert.
const labelFailed = "failed"

// Labels returns all non-empty values of Label.
func Labels() []string {
	return []string{string(Running), string(NotReady), labelFailed, string(Aborted), string(Promoted)}
}

// Label returns the state for metrics; "" without a rollout.
func (s *Status) Label() string {
	switch {
	case s == nil:
		return ""
	case s.State == Aborted && s.ByItself:
		return labelFailed
	}
	return string(s.State)
}

// Decision is the end of a rollout. It holds while the configuration has exactly this candidate and
// share, and the program is the same: the files take precedence.
type Decision struct {
	State  State             `json:"state"`
	Reason string            `json:"reason,omitempty"`
	Since  time.Time         `json:"since"`
	On     handler.Candidate `json:"on"`
	// ByItself is set if berth made the decision because too many pods failed.
	ByItself bool `json:"by_itself,omitempty"`
	// SHA256 is the program's checksum; empty if unknown.
	SHA256 string `json:"sha256,omitempty"`
}

// Known implements statefile.Decision.
func (d *Decision) Known() bool { return d != nil && (d.State == Aborted || d.State == Promoted) }

// File returns the file for Decisions, in a directory that survives a reboot.
func File(dir string) statefile.ByHandler[*Decision] {
	return statefile.ByHandler[*Decision]{
		Path:     filepath.Join(dir, "rollouts.json"),
		Unusable: "read rollout decisions; remove the file, and remove candidate from handlers whose rollout was aborted",
	}
}

// Probed is the result of a candidate's probes.
type Probed struct {
	// Known is false until a probe has finished. Failure is the error of the last probe, or empty.
	Known   bool
	Failure string
	// SHA256 is the checksum of the program in the last successful probe, FailedSHA256 in the last
	// failed one. Either is empty if unknown.
	SHA256, FailedSHA256 string
}

// View is a snapshot of one handler's rollout. Its methods decide what follows from it; all are
// pure.
type View struct {
	// Definition is the handler's; nil if it has no usable one.
	Definition *handler.Definition
	// Decision is the handler's last one, or nil. It may belong to an earlier rollout.
	Decision *Decision
	// Probed is about the candidate.
	Probed Probed
}

// key identifies one of a handler's rollouts.
type key struct {
	// digest is the digest of the candidate's Definition.
	digest string
	// sha256 is the candidate's checksum, empty while unknown.
	sha256 string
}

// Definitions returns d and, if it has a candidate, the candidate's Definition.
func Definitions(d *handler.Definition) []*handler.Definition {
	if d.Candidate == nil {
		return []*handler.Definition{d}
	}
	return []*handler.Definition{d, d.WithCandidate()}
}

func (v View) configured() bool { return v.Definition != nil && v.Definition.Candidate != nil }

// key returns the key of the configured rollout.
func (v View) key() key {
	return key{digest: v.Definition.WithCandidate().Digest(), sha256: v.Probed.SHA256}
}

// decided returns the Decision that holds, or nil.
func (v View) decided() *Decision {
	r := v.Decision
	if r == nil || !v.configured() || r.On != *v.Definition.Candidate || !mayBe(r.SHA256, v.Probed.SHA256) {
		return nil
	}
	return r
}

// open reports whether there is a rollout without a decision.
func (v View) open() bool { return v.configured() && v.decided() == nil }

// mayBe reports whether two checksums can be of the same program; an empty one is unknown.
func mayBe(a, b string) bool { return a == b || a == "" || b == "" }

// Routes returns the Definition for new pods, and the candidate for its share of them, or nil.
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

// Status returns the rollout's status, or nil without a rollout.
func (v View) Status() *Status {
	if !v.configured() {
		return nil
	}
	s := &Status{Path: v.Definition.Candidate.Path, Percent: v.Definition.Candidate.Percent, State: Running}
	// An abort applies to one program only. It is ignored while another one is at the candidate's
	// path.
	if r := v.decided(); r != nil && (r.State != Aborted || mayBe(r.SHA256, v.Probed.FailedSHA256)) {
		s.State, s.Reason, s.ByItself = r.State, r.Reason, r.ByItself
		return s
	}
	if !v.Probed.Known || v.Probed.Failure != "" {
		s.State, s.Reason = NotReady, cmp.Or(v.Probed.Failure, NotProbedYet)
	}
	return s
}

// decidable returns an error if the handler has no rollout that an operator can promote or abort.
func (v View) decidable(name string) error {
	if d := v.Definition; d != nil && d.Type == handler.CRI {
		return fmt.Errorf("handler %q belongs to another daemon, so berth cannot roll out its binary; configure a second handler for the new one: %w", name, errdefs.ErrFailedPrecondition)
	}
	if !v.configured() {
		return fmt.Errorf("handler %q has no rollout; configure candidate = { runtime_path = …, percent = … } under [runtimes.%s]: %w", name, name, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// end is a request to promote or abort.
type end struct {
	state  State
	reason string
	on     handler.Candidate
	// of is the rollout with too many failed pods; nil for an operator's request.
	of *key
}

// decide returns the Decision for a request, or the reason why it is rejected.
func (v View) decide(name string, e end, now time.Time) (*Decision, error) {
	if !v.configured() || *v.Definition.Candidate != e.on || e.of != nil && !mayBe(e.of.sha256, v.Probed.SHA256) {
		return nil, fmt.Errorf("the configuration of handler %q changed during this call; check it and try again: %w", name, errdefs.ErrFailedPrecondition)
	}
	if e.state == Promoted && (!v.Probed.Known || v.Probed.Failure != "") {
		return nil, fmt.Errorf("cannot promote the candidate of handler %q: not ready: %s: %w", name, cmp.Or(v.Probed.Failure, NotProbedYet), errdefs.ErrFailedPrecondition)
	}
	if r := v.decided(); r != nil && r.State == Aborted && r.ByItself && e.of == nil {
		if e.state == Promoted {
			return nil, fmt.Errorf("cannot promote the candidate of handler %q: its rollout was aborted: %s; install a corrected binary or change candidate, and a new rollout begins: %w", name, r.Reason, errdefs.ErrFailedPrecondition)
		}
		if e.reason != "" {
			return nil, fmt.Errorf("the rollout of handler %q was already aborted: %s; this reason is kept, so abort without a new one: %w", name, r.Reason, errdefs.ErrFailedPrecondition)
		}
		return r, nil
	}
	if e.state == Aborted && e.reason == "" {
		e.reason = "aborted by an operator"
	}
	return &Decision{State: e.state, Reason: e.reason, Since: now, On: e.on, ByItself: e.of != nil, SHA256: v.Probed.SHA256}, nil
}

// Outdated returns the sorted names of handlers with a Decision on a rollout that no longer exists.
// If unusable is set, a handler without a Definition keeps its Decision: it may be in an unreadable
// file. Pure.
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
