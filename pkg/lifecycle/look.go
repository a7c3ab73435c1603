package lifecycle

import (
	"cmp"
	"slices"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
)

// Handlers tells all handlers, sorted by name, as they are at this moment.
func (m *Manager) Handlers() []Handler {
	live := m.o.Live.Live()
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]Handler, 0, len(m.plan.Entries))
	for _, e := range m.plan.Entries {
		all = append(all, m.told(e, live))
	}
	return all
}

// Handler tells one handler. The error is of the class ErrNotFound.
func (m *Manager) Handler(name string) (Handler, error) {
	live := m.o.Live.Live()
	m.mu.Lock()
	defer m.mu.Unlock()
	e, there := m.plan.entry(name)
	if !there {
		return Handler{}, m.knows(name)
	}
	return m.told(e, live), nil
}

// told is an entry with what else is known; mu is held.
func (m *Manager) told(e Entry, live map[string]int) Handler {
	name := e.Definition.Name
	h := Handler{
		Definition: e.Definition, Digest: e.Definition.Digest(), State: e.State, Default: name == m.plan.Default,
		Configured: e.Configured, Since: e.Since, LivePods: live[name],
	}
	if v, known := m.truth.verdictOf(e.Definition); known {
		h.Runtime, h.Probed, h.ProbeError = v.runtime, v.at, cmp.Or(v.failure, v.doubt)
	}
	h.Capabilities = m.truth.tables[h.Digest]
	h.Rollout = m.truth.rollouts()(name).Status()
	if i := m.truth.intents[name]; i != nil {
		kept := *i
		h.Intent = &kept
	}
	return h
}

// Candidates are the Definitions that new pods may come to get by a configuration: those
// of all handlers, ready or not, and of their rollouts.
func Candidates(c *config.Config) []*handler.Definition { return subjects(c) }

// Current tells what is in force.
func (m *Manager) Current() Current {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := Current{
		Generation: m.plan.Generation, Digest: m.plan.Digest, Default: m.plan.Default,
		Loaded: m.truth.loaded, Trigger: m.truth.trigger, Config: m.truth.config,
		Problems: slices.Clone(m.problems), NeedRestart: slices.Clone(m.truth.pending),
	}
	if m.last != nil {
		c.Last = m.last.copy()
	}
	return c
}

// notReady are the handlers that cannot run pods, with the reasons.
func (p *Plan) notReady() map[string]string {
	all := map[string]string{}
	for _, e := range p.Entries {
		if e.Configured && !e.State.AcceptsPods() {
			all[e.Definition.Name] = e.State.Reason
		}
	}
	return all
}
