package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/handler"
)

// Plan is the input of a routing table. It is immutable once published.
type Plan struct {
	Generation uint64
	// Digest covers all configured Definitions and the default handler.
	Digest string
	// Default is the name of the default handler, which is one of Entries.
	Default string
	// Entries are sorted by name.
	Entries []Entry
	// Candidates are the Definitions that new pods may get, whatever the state of their handlers.
	Candidates []*handler.Definition
	// AdvertiseNotReady keeps handlers that accept no pods in the CRI's Status.
	AdvertiseNotReady bool
	// CgroupPrefix is that of new pods.
	CgroupPrefix string
}

// Entry is one handler of a Plan.
type Entry struct {
	Definition *handler.Definition
	State      handler.State
	// Next is the Definition for a share of new pods; nil without a rollout.
	Next *handler.Definition
	// Since is the generation that first had the Definition.
	Since uint64
	// Configured is false for a handler that is in the plan only because it has pods.
	Configured bool
}

// planned computes the plan from the truth and the number of pods. An entry with the same
// Definition as in last keeps its Since, as does a state with the same phase. Pure.
func planned(t *truth, pods map[string]int, last *Plan, generation uint64, now time.Time) *Plan {
	p := &Plan{
		Generation: generation, Default: t.config.DefaultRuntime,
		Candidates: Candidates(t.config), AdvertiseNotReady: t.config.Handlers.AdvertiseNotReady,
		CgroupPrefix: t.config.Engine.CgroupPrefix,
	}
	entries := map[string]Entry{}
	for _, d := range t.config.Runtimes {
		d, candidate := t.rollout(d).Routes()
		entries[d.Name] = Entry{Definition: d, Next: candidate, Configured: true, State: state(t.unable(d), t.intents[d.Name])}
	}
	for _, b := range t.config.Broken {
		entries[b.Name] = Entry{
			Definition: &handler.Definition{Name: b.Name, Origin: b.Origin}, Configured: true,
			State: state(b.Reason, t.intents[b.Name]),
		}
	}
	for name, count := range pods {
		if _, there := entries[name]; there || count == 0 || handler.ValidName(name) != nil {
			continue
		}
		entries[name] = Entry{Definition: t.gone(name), State: gone}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e := entries[name]
		e.Since, e.State.Since = p.Generation, now
		before, there := last.entry(name)
		if there && before.Definition.Digest() == e.Definition.Digest() {
			e.Since = before.Since
		}
		if there && before.State.Phase == e.State.Phase {
			e.State.Since = before.State.Since
		}
		p.Entries = append(p.Entries, e)
	}
	p.Digest = p.digest()
	return p
}

// gone is the state of a handler that is no longer configured but has pods, whatever its intent.
var gone = handler.State{Phase: handler.Draining, Reason: "no longer configured; removed with its last pod"}

// state returns the state of a configured handler. An operator's intent takes precedence over a
// failure, and both are in the reason. Pure.
func state(unable string, i *Intent) handler.State {
	switch {
	case i != nil:
		return handler.State{Phase: i.phase(), Reason: i.stateReason(unable)}
	case unable != "":
		return handler.State{Phase: handler.NotReady, Reason: unable}
	}
	return handler.State{Phase: handler.Ready}
}

func (p *Plan) entry(name string) (Entry, bool) {
	i, found := slices.BinarySearchFunc(p.Entries, name, func(e Entry, name string) int {
		return strings.Compare(e.Definition.Name, name)
	})
	if !found {
		return Entry{}, false
	}
	return p.Entries[i], true
}

// digest covers the configuration, not the state.
func (p *Plan) digest() string {
	sum := sha256.New()
	fmt.Fprintf(sum, "default %s\n", p.Default)
	for _, e := range p.Entries {
		if e.Configured {
			fmt.Fprintf(sum, "%s %s\n", e.Definition.Name, e.Definition.Digest())
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// same reports whether two plans route alike and give new pods the same settings.
func (p *Plan) same(o *Plan) bool {
	return p.Default == o.Default && p.Digest == o.Digest && p.AdvertiseNotReady == o.AdvertiseNotReady && p.CgroupPrefix == o.CgroupPrefix &&
		slices.EqualFunc(p.Entries, o.Entries, func(a, b Entry) bool {
			return a.State.Same(b.State) && a.Configured == b.Configured && (a.Next == nil) == (b.Next == nil) &&
				a.Definition.Name == b.Definition.Name && a.Definition.Origin == b.Definition.Origin
		})
}

func (p *Plan) notReady() map[string]string {
	all := map[string]string{}
	for _, e := range p.Entries {
		if e.Configured && !e.State.AcceptsPods() {
			all[e.Definition.Name] = e.State.Reason
		}
	}
	return all
}
