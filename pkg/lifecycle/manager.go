// Package lifecycle keeps the table that pods are routed by true to the
// configuration, to what operators said, and to the machine.
//
//	m, err := lifecycle.New(ctx, lifecycle.Options{Config: cfg, Loader: l, Prober: p, Live: r, Publisher: t, Dir: root})
//	defer m.Close()
//	m.Start()          // probes in the background while pods are recovered
//	err = m.Ready(ctx) // publishes what was found, watches, reloads
//	outcome, err := m.Reload(ctx, lifecycle.TriggerAdmin)
//
// A Manager is the one owner of four facts: the configuration that is in force,
// the intents of operators (cordon, drain), what probes found, and the table
// that follows from them. Everything that changes one of the first three makes a
// new Plan, by pure functions, and hands it to the Publisher before anybody can
// see it; what fails on the way changes nothing.
//
// Its parts stand on each other in one order: background, store (the truth and its
// plan), rollouts, probes, reloader, Manager. Each knows those before it.
//
// A reload reads all files, checks all of them, probes what changed, and only
// then takes the lock. A file with a mistake changes nothing.
package lifecycle

import (
	"context"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/lifecycle/statefile"
	"github.com/berth-cri/berth/pkg/probe"
)

// Manager owns what pods are routed by. All methods may be called at any time
// from any goroutine; before Ready, reloads wait for it.
type Manager struct {
	// Controller promotes and aborts rollouts.
	*rollout.Controller
	*starts
	*store

	watch   bool // the configuration's files
	intents statefile.ByHandler[*Intent]
	probes  *probes
	reloads *reloader
	// first is closed when the probes of Start are over.
	first chan struct{}
}

// New publishes a first plan, in which no handler
// accepts pods yet. Intents of an earlier daemon are read. The log of ctx is that
// of the Manager; its end is not.
func New(ctx context.Context, o Options) (*Manager, error) {
	past, err := readHistory(o.Dir)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to read the history of changes; starting a new one")
	}
	s := newStore(newBackground(ctx), o.Live, o.Publisher, past)
	r := newRollouts(s, o.Dir)
	p := &probes{store: s, rollouts: r, prober: o.Prober, source: o.CapabilitySource, underway: map[string]int{}}
	m := &Manager{
		Controller: r.controller, starts: &starts{probes: p, logs: map[string]*startLog{}}, store: s,
		watch: o.Config.Handlers.Watch, intents: intentFile(o.Dir), probes: p,
		reloads: newReloader(r, p, o), first: make(chan struct{}),
	}
	intents, err := m.intents.Read()
	if err != nil {
		s.problems = append(s.problems, err.Error())
	}
	decisions, err := r.file.Read()
	if err != nil {
		s.problems = append(s.problems, err.Error())
	}
	if err := s.begins(o.Config, intents, decisions); err != nil {
		s.end()
		return nil, err
	}
	if len(o.Config.Rejected) > 0 {
		rejected := Outcome{Trigger: TriggerStart, At: time.Now()}
		m.reloads.failed(&rejected, o.Config.Rejected, "")
		m.reloads.report(ctx, rejected, request{})
	}
	return m, nil
}

// Start begins to probe all handlers, and does not wait for that.
func (m *Manager) Start() {
	m.history.add(Change{What: "start", By: byBerth})
	m.work.Go(func() { m.history.run(m.life) })
	for _, p := range m.problems {
		log.G(m.life).WithField("problem", p).Warn("Skipping invalid part of the configuration")
	}
	m.work.Go(func() {
		defer close(m.first)
		m.probes.probeAll(m.life, Candidates(m.snapshot().config), probe.Look, probeWait)
	})
}

// Ready is called once LivePods knows all pods. It waits for the probes of
// Start, though not for a runtime that hangs, publishes what they found, and
// begins to watch and to reload. Reloads that were asked for earlier come then.
func (m *Manager) Ready(ctx context.Context) error {
	select {
	case <-m.first:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := m.open(); err != nil {
		return err
	}
	m.reloads.loader.InForce(ctx, m.snapshot().config)
	if m.watch {
		m.reloads.watchFiles()
	}
	m.work.Go(m.reloads.run)
	m.work.Go(m.probes.looks)
	return nil
}

// Close ends what the Manager does by itself, or leaves it behind if it does not
// end in time. The table stays as it is.
func (m *Manager) Close() error {
	err := m.background.close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watchers {
		m.drop(w)
	}
	return err
}

// Reload reads the configuration again and puts it in force, all of it or
// nothing. The outcome is that of a reading which began after the call; its
// Error is also returned. The end of ctx, or Close, ends the waiting, not the reload.
func (m *Manager) Reload(ctx context.Context, t Trigger) (Outcome, error) {
	done := make(chan Outcome, 1)
	if !m.reloads.request(request{trigger: t, by: userOf(ctx), done: []chan Outcome{done}}) {
		return Outcome{}, errClosed
	}
	select {
	case o := <-done:
		return o, o.Error
	case <-ctx.Done():
		return Outcome{}, context.Cause(ctx)
	case <-m.life.Done():
		select {
		case o := <-done:
			return o, o.Error
		default:
			return Outcome{}, errClosed
		}
	}
}

// Request asks for a reload and does not wait for it. One that comes before
// Ready is remembered.
func (m *Manager) Request(t Trigger) { m.reloads.request(request{trigger: t}) }

// Handlers tells all handlers, sorted by name, as they are at this moment.
func (m *Manager) Handlers() []Handler {
	all := m.handlers()
	for i := range all {
		all[i].Starts = m.startsOf(all[i])
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
	h := m.describe(e, live)
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

// Changes are the last changes of a handler on this node, the oldest first; all if name is
// empty. They survive restarts. The error is of the class ErrNotFound for a handler that
// does not exist and has none.
func (m *Manager) Changes(name string) ([]Change, error) {
	all := m.history.last(name)
	if name != "" && len(all) == 0 {
		return nil, m.known(name)
	}
	return all, nil
}

// Watch returns a channel that gets an Event after each change of the table and
// each reload. It is closed when ctx ends, or the Manager. A slow reader does
// not hold up anything and misses no change, but sees several as one.
func (m *Manager) Watch(ctx context.Context) <-chan Event {
	w := &watcher{make(chan Event, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.life.Err() != nil {
		close(w.events)
		return w.events
	}
	m.watchers[w] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.drop(w)
	})
	return w.events
}
