package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

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
}

// Ruling is what became of a trial. It holds as long as exactly that next binary,
// with that share and those limits, is configured: the files have the last word.
type Ruling struct {
	State  TrialState   `json:"state"`
	Reason string       `json:"reason,omitempty"`
	Since  time.Time    `json:"since"`
	On     handler.Next `json:"on"`
}

// ruling is what holds for the next binary of d, or nil.
func (t *truth) ruling(d *handler.Definition) *Ruling {
	if r := t.rulings[d.Name]; r != nil && d.Next != nil && r.On == *d.Next {
		return r
	}
	return nil
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
	if r := t.ruling(d); r != nil {
		told.State, told.Reason = r.State, r.Reason
		return told
	}
	switch v, probed := t.verdictOf(d.WithNext()); {
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
		return map[string]*Ruling{}, fmt.Errorf("%s, which says what became of binaries on trial, cannot be used; "+
			"remove the file, and next from handlers whose trial was aborted: %w", m.rulingsPath(), err)
	}
	kept := map[string]*Ruling{}
	for name, r := range s.Handlers {
		if r != nil && (r.State == TrialAborted || r.State == TrialPromoted) {
			kept[name] = r
		}
	}
	return kept, nil
}
