package lifecycle

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// truth holds the facts that plans are computed from. It is copied, changed and swapped once the
// new plan is published.
type truth struct {
	config  *config.Config
	loaded  time.Time
	trigger Trigger
	pending []config.Change
	intents map[string]*Intent
	// decisions are about rollouts, by the handler's name.
	decisions map[string]*rollout.Decision
	// verdicts are keyed by the digest of a Definition, so that a late probe result of an old
	// Definition does not count for a new one of the same name.
	verdicts map[string]verdict
	// retired are Definitions that are no longer configured, by name, for as long as they have
	// pods.
	retired map[string]*handler.Definition
}

func (t *truth) copy() *truth {
	c := *t
	c.intents, c.verdicts, c.retired = maps.Clone(t.intents), maps.Clone(t.verdicts), maps.Clone(t.retired)
	c.decisions = maps.Clone(t.decisions)
	return &c
}

func (t *truth) verdictOf(d *handler.Definition) (verdict, bool) {
	v, known := t.verdicts[d.Digest()]
	return v, known
}

// rollout returns the View of a configured Definition's rollout; an empty one for nil.
func (t *truth) rollout(d *handler.Definition) rollout.View {
	if d == nil {
		return rollout.View{}
	}
	v := rollout.View{Definition: d, Decision: t.decisions[d.Name]}
	if d.Candidate == nil {
		return v
	}
	found, probed := t.verdictOf(d.WithCandidate())
	v.Probed = rollout.Probed{Known: probed, Failure: found.failure, FailedSHA256: found.failed}
	if found.runtime != nil {
		v.Probed.SHA256 = found.runtime.SHA256
	}
	return v
}

// view returns the View of a handler's rollout.
func (t *truth) view(name string) rollout.View { return t.rollout(definitions(t.config)[name]) }

// unable returns the reason why a configured handler cannot run pods, or "".
func (t *truth) unable(d *handler.Definition) string {
	v, probed := t.verdictOf(d)
	if !probed {
		return rollout.NotProbedYet
	}
	return v.failure
}

// gone returns the Definition of a handler that is no longer configured but still has pods.
func (t *truth) gone(name string) *handler.Definition {
	return cmp.Or(t.retired[name], &handler.Definition{Name: name, Origin: "no longer configured"})
}

// able returns the capabilities of configured handlers, by name.
func (t *truth) able() map[string]capability.Table {
	all := make(map[string]capability.Table, len(t.config.Runtimes))
	for _, d := range t.config.Runtimes {
		d, _ = t.rollout(d).Routes()
		all[d.Name] = t.verdicts[d.Digest()].table
	}
	return all
}

// Candidates returns all Definitions of a configuration that new pods may get: those of all
// handlers, ready or not, and of their rollouts. These are the Definitions that are probed.
func Candidates(c *config.Config) []*handler.Definition {
	var all []*handler.Definition
	for _, d := range c.Runtimes {
		all = append(all, rollout.Definitions(d)...)
	}
	return all
}

// note records a probe result. After a failed probe the last observed Runtime stays. Older results
// are ignored, as is a success that is less deep than the RunPod probe that failed before.
func (t *truth) note(r result) {
	digest := r.definition.Digest()
	before, known := t.verdicts[digest]
	if known && (r.at.Before(before.at) || r.err == nil && before.depth == probe.RunPod && r.depth < probe.RunPod) {
		return
	}
	t.verdicts[digest] = before.after(r, known)
}

// adopt sets the configuration and retires the Definitions that it no longer contains.
func (t *truth) adopt(c *config.Config) {
	stays, digests := definitions(c), map[string]bool{}
	for _, d := range Candidates(c) {
		digests[d.Digest()] = true
	}
	for name, d := range definitions(t.config) {
		if stays[name] == nil {
			t.retired[name] = d
		}
	}
	maps.DeleteFunc(t.retired, func(name string, _ *handler.Definition) bool { return stays[name] != nil })
	maps.DeleteFunc(t.verdicts, func(digest string, _ verdict) bool { return !digests[digest] })
	t.config = c
}

func (t *truth) forget(pods map[string]int) {
	maps.DeleteFunc(t.retired, func(name string, _ *handler.Definition) bool { return pods[name] == 0 })
}

// definitions returns the configured handlers that can be probed, by name.
func definitions(c *config.Config) map[string]*handler.Definition {
	all := map[string]*handler.Definition{}
	for _, d := range c.Runtimes {
		all[d.Name] = d
	}
	return all
}

// due returns the Definitions with failed probes that are due for a retry.
func (t *truth) due(now time.Time) []*handler.Definition {
	return slices.DeleteFunc(Candidates(t.config), func(d *handler.Definition) bool {
		return !t.verdicts[d.Digest()].due(now, t.config.Handlers.ProbeInterval)
	})
}
