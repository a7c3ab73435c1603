package lifecycle

import (
	"cmp"
	"slices"

	"github.com/berth-cri/berth/pkg/handler"
)

// Handlers tells all handlers, sorted by name, as they are at this moment.
func (m *Manager) Handlers() []Handler {
	all := m.handlers()
	for i := range all {
		all[i].Starts = m.startsOf(all[i])
	}
	return all
}

func (s *store) handlers() []Handler {
	live := s.live.Live()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Handler, 0, len(s.plan.Entries))
	for _, e := range s.plan.Entries {
		all = append(all, s.told(e, live))
	}
	return all
}

// Handler tells one handler. The error is of the class ErrNotFound.
func (m *Manager) Handler(name string) (Handler, error) {
	live := m.live.Live()
	m.mu.Lock()
	defer m.mu.Unlock()
	e, there := m.plan.entry(name)
	if !there {
		return Handler{}, m.knows(name)
	}
	h := m.told(e, live)
	h.Starts = m.startsOf(h)
	return h, nil
}

// startsOf are the starts of a handler. That it became ready after the last that failed ends
// the row: its self-check pod ran.
func (m *Manager) startsOf(h Handler) Starts {
	s := m.Starts(h.Definition.Name)
	if h.State.Phase == handler.Ready && h.State.Since.After(s.At) {
		s.InARow = 0
	}
	return s
}

// told is an entry with what else is known; mu is held.
func (s *store) told(e Entry, live map[string]int) Handler {
	name := e.Definition.Name
	h := Handler{
		Definition: e.Definition, Digest: e.Definition.Digest(), State: e.State, Default: name == s.plan.Default,
		Configured: e.Configured, Since: e.Since, LivePods: live[name],
	}
	if v, known := s.truth.verdictOf(e.Definition); known {
		h.Runtime, h.Probed, h.ProbeError = v.runtime, v.at, cmp.Or(v.failure, v.doubt)
		h.Capabilities = v.table
	}
	h.Rollout = s.truth.rollouts()(name).Status()
	if i := s.truth.intents[name]; i != nil {
		kept := *i
		h.Intent = &kept
	}
	return h
}

// Current tells what is in force.
func (m *Manager) Current() Current { return m.current() }

func (s *store) current() Current {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := Current{
		Generation: s.plan.Generation, Digest: s.plan.Digest, Default: s.plan.Default,
		Loaded: s.truth.loaded, Trigger: s.truth.trigger, Config: s.truth.config,
		Problems: slices.Clone(s.problems), NeedRestart: slices.Clone(s.truth.pending),
	}
	if s.last != nil {
		c.Last = s.last.copy()
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
