package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
)

// TrialState is where the trial of a next binary stands.
type TrialState string

const (
	// TrialRunning gives the binary to its share of new pods.
	TrialRunning TrialState = "running"
	// TrialNotReady gives it to none, because a probe of it failed.
	TrialNotReady TrialState = "not-ready"
	// TrialAborted gives it to none, for good.
	TrialAborted TrialState = "aborted"
	// TrialPromoted gives it to all.
	TrialPromoted TrialState = "promoted"
)

// Trial is that of a handler's next binary.
type Trial struct {
	Path    string     `json:"path"`
	Percent int        `json:"percent"`
	State   TrialState `json:"state"`
	// Reason says why it is not running.
	Reason string `json:"reason,omitempty"`
	// ByItself says that too many pods failed: no operator ended it.
	ByItself bool `json:"by_itself,omitempty"`
}

// Fault is why the binary is not tried as configured, if no operator wanted that.
func (t *Trial) Fault() string {
	if t == nil || t.State == TrialAborted && !t.ByItself || t.Reason == notProbedYet {
		return ""
	}
	if t.State == TrialAborted || t.State == TrialNotReady {
		return t.Reason
	}
	return ""
}

// Ruling is what became of a trial. It holds as long as exactly that next binary,
// with that share and those limits, is configured, and is the same program: the
// files have the last word.
type Ruling struct {
	State  TrialState   `json:"state"`
	Reason string       `json:"reason,omitempty"`
	Since  time.Time    `json:"since"`
	On     handler.Next `json:"on"`
	// ByItself says that too many pods failed: no operator said so.
	ByItself bool `json:"by_itself,omitempty"`
	// SHA256 is that of the program; empty if it was not known.
	SHA256 string `json:"sha256,omitempty"`
}

// ruling is what holds for the next binary of d, or nil.
func (t *truth) ruling(d *handler.Definition) *Ruling {
	r := t.rulings[d.Name]
	if r == nil || d.Next == nil || r.On != *d.Next || !mayBe(r.SHA256, t.trialOf(d).sha256) {
		return nil
	}
	return r
}

// mayBe says whether two programs can be the same; one that is not known can be any.
func mayBe(a, b string) bool { return a == b || a == "" || b == "" }

// trialKey tells one trial of a handler from another.
type trialKey struct {
	// digest is that of the Definition of pods that try the binary.
	digest string
	// sha256 is the binary's, empty while it is not known.
	sha256 string
}

// trialOf is the trial of a Definition that has a next binary.
func (t *truth) trialOf(d *handler.Definition) trialKey {
	k := trialKey{digest: d.WithNext().Digest()}
	if rt := t.verdicts[k.digest].runtime; rt != nil {
		k.sha256 = rt.SHA256
	}
	return k
}

// settle drops the rulings on trials that are no more, and returns the handlers'
// names. A handler may have its trial still if there is a file that cannot be used.
func (t *truth) settle() (dropped []string) {
	configured := definitions(t.config)
	for name := range t.rulings {
		d := configured[name]
		if d == nil && (len(t.config.Broken) > 0 || len(t.config.Problems) > 0) {
			continue
		}
		if d == nil || t.ruling(d) == nil {
			dropped = append(dropped, name)
			delete(t.rulings, name)
		}
	}
	return dropped
}

// settle has trials that are no more forgotten, on disk as well; mu is held. A
// ruling that stays there for want of room holds for what it was on only.
func (m *Manager) settle() {
	t := m.truth.copy()
	dropped := t.settle()
	m.trials.keep(t)
	if len(dropped) == 0 {
		return
	}
	m.truth = t
	entry := log.G(m.life).WithField("handlers", dropped)
	if err := replace(m.rulingsPath(), storedRulings{t.rulings}); err != nil {
		entry = entry.WithError(err)
	}
	entry.Info("Rollout changed or removed; discarding its previous decision")
}

// routed is the Definition that new pods of d get, and the one that a share of
// them gets instead, or nil.
func (t *truth) routed(d *handler.Definition) (main, tried *handler.Definition) {
	if d.Next == nil {
		return d, nil
	}
	tried = d.WithNext()
	switch r := t.ruling(d); {
	case r != nil && r.State == TrialPromoted:
		return tried, nil
	case r != nil:
		return d, nil
	}
	if v, probed := t.verdictOf(tried); !probed || v.failure != "" {
		return d, nil
	}
	return d, tried
}

// trial tells the trial of a configured handler, or nil.
func (t *truth) trial(name string) *Trial {
	d := definitions(t.config)[name]
	if d == nil || d.Next == nil {
		return nil
	}
	told := &Trial{Path: d.Next.Path, Percent: d.Next.Percent, State: TrialRunning}
	v, probed := t.verdictOf(d.WithNext())
	// What was said of a program is no word about another in its place; if that
	// goes again, the word counts.
	if r := t.ruling(d); r != nil && (r.State != TrialAborted || mayBe(r.SHA256, v.failed)) {
		told.State, told.Reason, told.ByItself = r.State, r.Reason, r.ByItself
		return told
	}
	switch {
	case !probed:
		told.State, told.Reason = TrialNotReady, notProbedYet
	case v.failure != "":
		told.State, told.Reason = TrialNotReady, v.failure
	}
	return told
}

// withTried is d and, if it has one, the Definition of pods that try its next binary.
func withTried(d *handler.Definition) []*handler.Definition {
	if d.Next == nil {
		return []*handler.Definition{d}
	}
	return []*handler.Definition{d, d.WithNext()}
}

// Candidates are the Definitions that new pods may come to get by a configuration: those
// of all handlers, ready or not, and of what they try.
func Candidates(c *config.Config) []*handler.Definition { return subjects(c) }

// subjects are all Definitions that probes are about.
func subjects(c *config.Config) []*handler.Definition {
	var all []*handler.Definition
	for _, d := range c.Runtimes {
		all = append(all, withTried(d)...)
	}
	return all
}

func (m *Manager) rulingsPath() string { return filepath.Join(m.o.Dir, "trials.json") }

// storedRulings is the form on disk. Fields may be added, never renamed.
type storedRulings struct {
	Handlers map[string]*Ruling `json:"handlers"`
}

// readRulings returns those of an earlier daemon. A file that cannot be used is
// an error, and no rulings.
func (m *Manager) readRulings() (map[string]*Ruling, error) {
	data, err := os.ReadFile(m.rulingsPath())
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]*Ruling{}, nil
	}
	var s storedRulings
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		return map[string]*Ruling{}, fmt.Errorf("read rollout decisions from %s; "+
			"remove the file, and remove next from handlers whose rollout was aborted: %w", m.rulingsPath(), err)
	}
	kept := map[string]*Ruling{}
	for name, r := range s.Handlers {
		if r != nil && (r.State == TrialAborted || r.State == TrialPromoted) {
			kept[name] = r
		}
	}
	return kept, nil
}
