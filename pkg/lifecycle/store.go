package lifecycle

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// store holds the truth and its plan. Each plan but the first comes from change or apply, which
// publish it before it takes effect.
type store struct {
	*background
	pods      PodCounter
	publisher Publisher
	history   *history
	// routing is closed once pods are routed.
	routing chan struct{}

	// mu is held to compute and publish a plan, never during file reads or probes.
	mu       sync.Mutex
	truth    *truth
	plan     *Plan
	able     map[string]capability.Table // by handler, as last sent to watchers
	last     *Outcome
	counts   counts
	problems []string
	opened   bool // pods are routed
	watchers map[*watcher]struct{}
}

func newStore(b *background, pods PodCounter, p Publisher, h *history) *store {
	return &store{background: b, pods: pods, publisher: p, history: h, routing: make(chan struct{}), counts: newCounts(), watchers: map[*watcher]struct{}{}}
}

// publishFirst publishes the first plan, in which no handler has been probed.
func (s *store) publishFirst(c *config.Config, intents map[string]*Intent, decisions map[string]*rollout.Decision) error {
	s.problems = append(s.problems, c.Problems.Lines()...)
	s.truth = &truth{
		config: c, loaded: cmp.Or(c.ReadAt, time.Now()), trigger: TriggerStart, intents: intents, decisions: decisions,
		verdicts: map[string]verdict{}, retired: map[string]*handler.Definition{},
	}
	s.counts.success = s.truth.loaded
	s.plan = planned(s.truth, nil, &Plan{}, s.generation(), time.Now())
	return s.publisher.Publish(s.plan)
}

// snapshot returns the current truth, which the caller must not change.
func (s *store) snapshot() *truth {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.truth
}

// change applies a change to the truth and publishes the new plan. If either fails, both stay
// unchanged.
func (s *store) change(change func(*truth) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.publish(change)
}

// publish is change with mu held.
func (s *store) publish(change func(*truth) error) error {
	changed, err := s.apply(Change{}, change)
	if len(changed) > 0 {
		s.notify(changed, nil)
	}
	return err
}

// apply is publish for callers that notify watchers themselves. It returns the handlers with a
// changed plan entry or changed capabilities. The change of the handler named in wish is audited as
// wish.
func (s *store) apply(wish Change, change func(*truth) error) (changed []string, err error) {
	t := s.truth.copy()
	if err := change(t); err != nil {
		return nil, err
	}
	pods := s.pods.Pods()
	t.forget(pods)
	p := planned(t, pods, s.plan, s.generation(), time.Now())
	if p.same(s.plan) {
		s.auditStates(p, wish)
		s.truth = t
		return s.addCapabilityChanges(nil), nil
	}
	if err := s.publisher.Publish(p); err != nil {
		return nil, err
	}
	changed = changedNames(s.plan, p)
	s.auditStates(p, wish)
	s.truth, s.plan = t, p
	return s.addCapabilityChanges(changed), nil
}

// addCapabilityChanges appends the handlers with capabilities that differ from those last sent to
// watchers; mu is held.
func (s *store) addCapabilityChanges(changed []string) []string {
	before := s.able
	s.able = s.truth.able()
	for name, t := range s.able {
		if was, there := before[name]; there && !reflect.DeepEqual(was, t) {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed)
}

// open publishes the last plan of the first generation, and begins to route pods.
func (s *store) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.publish(func(*truth) error { return nil })
	if s.opened = err == nil; s.opened {
		close(s.routing)
	}
	return err
}

// generation returns the next plan's generation; mu is held. All plans before Ready share the first
// generation: no pod has been routed by them.
func (s *store) generation() uint64 {
	if !s.opened {
		return 1
	}
	return s.plan.Generation + 1
}

// auditStates audits the handlers with a new state in the next plan, and the one named in wish. A
// first probe is audited only if the handler cannot run pods.
func (s *store) auditStates(p *Plan, wish Change) {
	for _, e := range p.Entries {
		before, there := s.plan.entry(e.Definition.Name)
		c := Change{Handler: e.Definition.Name, What: "state", By: byBerth}
		switch {
		case e.Definition.Name == wish.Handler:
			c = wish
		case there && before.State.Phase == e.State.Phase && !strings.HasSuffix(before.State.Reason, rollout.NotProbedYet),
			before.State.Same(e.State), e.State.Phase == handler.Ready && !there,
			e.State.Phase != handler.NotReady && strings.HasSuffix(before.State.Reason, rollout.NotProbedYet):
			continue
		}
		c.From, c.To, c.Reason = string(before.State.Phase), string(e.State.Phase), e.State.Reason
		s.audit(c)
	}
}

// audit logs a change of a handler in one line and adds it to the history.
func (s *store) audit(c Change) {
	s.history.add(c)
	entry := log.G(s.life).WithFields(log.Fields{
		"handler": c.Handler, "what": c.What, "from": c.From, "to": c.To, "by": c.By, "reason": c.Reason,
	})
	if c.To == string(handler.NotReady) {
		entry.Warn("Handler cannot run pods")
		return
	}
	entry.Info("Handler changed")
}

// refresh publishes the plan that follows from the current truth, and logs a failure.
func (s *store) refresh() {
	if err := s.change(func(*truth) error { return nil }); err != nil {
		log.G(s.life).WithError(err).Error("Failed to update the table of handlers")
	}
}

func (s *store) checkExists(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkExistsLocked(name)
}

// checkExistsLocked returns a NotFound error with the nearest name if the handler does not exist;
// mu is held.
func (s *store) checkExistsLocked(name string) error {
	if _, there := s.plan.entry(name); there {
		return nil
	}
	var names []string
	for _, e := range s.plan.Entries {
		names = append(names, e.Definition.Name)
	}
	text := fmt.Sprintf("handler %q does not exist; the handlers are %s", name, strings.Join(names, ", "))
	if near, ok := handler.Nearest(name, names); ok {
		text += fmt.Sprintf(" (did you mean %q?)", near)
	}
	return fmt.Errorf("%s: %w", text, errdefs.ErrNotFound)
}

// stale reports whether the plan must change because a handler that is no longer configured got its
// first pod or lost its last one.
func (s *store) stale() bool {
	pods := s.pods.Pods()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.plan.Entries {
		if !e.Configured && pods[e.Definition.Name] == 0 {
			return true
		}
		delete(pods, e.Definition.Name)
	}
	return len(pods) > 0
}

func (s *store) handlers() []Handler {
	pods := s.pods.Pods()
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Handler, 0, len(s.plan.Entries))
	for _, e := range s.plan.Entries {
		all = append(all, s.describe(e, pods))
	}
	return all
}

// describe returns a Handler for an entry; mu is held.
func (s *store) describe(e Entry, pods map[string]int) Handler {
	name := e.Definition.Name
	h := Handler{
		Definition: e.Definition, Digest: e.Definition.Digest(), State: e.State, Default: name == s.plan.Default,
		Configured: e.Configured, Since: e.Since, Pods: pods[name],
		Intent: s.truth.intents[name], Rollout: s.truth.view(name).Status(),
	}
	if v, known := s.truth.verdictOf(e.Definition); known {
		h.Runtime, h.Probed, h.ProbeError = v.runtime, v.at, cmp.Or(v.failure, v.transient)
		h.Capabilities = v.table
	}
	return h
}

// Current returns the current state.
func (s *store) Current() Current {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Current{
		Generation: s.plan.Generation, Digest: s.plan.Digest, Default: s.plan.Default,
		Loaded: s.truth.loaded, Trigger: s.truth.trigger, Config: s.truth.config,
		Problems: slices.Clone(s.problems), NeedRestart: slices.Clone(s.truth.pending), Last: s.last,
	}
}
