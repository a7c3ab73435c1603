package lifecycle

import (
	"cmp"
	"slices"
)

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

// told is an entry with what else is known; mu is held.
func (s *store) told(e Entry, live map[string]int) Handler {
	name := e.Definition.Name
	h := Handler{
		Definition: e.Definition, Digest: e.Definition.Digest(), State: e.State, Default: name == s.plan.Default,
		Configured: e.Configured, Since: e.Since, LivePods: live[name],
		Intent: s.truth.intents[name], Rollout: s.truth.view(name).Status(),
	}
	if v, known := s.truth.verdictOf(e.Definition); known {
		h.Runtime, h.Probed, h.ProbeError = v.runtime, v.at, cmp.Or(v.failure, v.doubt)
		h.Capabilities = v.table
	}
	return h
}

// Current tells what is in force.
func (s *store) Current() Current {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Current{
		Generation: s.plan.Generation, Digest: s.plan.Digest, Default: s.plan.Default,
		Loaded: s.truth.loaded, Trigger: s.truth.trigger, Config: s.truth.config,
		Problems: slices.Clone(s.problems), NeedRestart: slices.Clone(s.truth.pending), Last: s.last,
	}
}
