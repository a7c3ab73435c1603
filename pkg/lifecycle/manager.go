// Package lifecycle keeps the table that pods are routed by up to date with the configuration, the
// intents of operators, and the machine.
//
//	m, err := lifecycle.New(ctx, lifecycle.Options{Config: cfg, Loader: l, Prober: p, PodCounter: r, Publisher: t, Dir: root})
//	defer m.Close()
//	m.Start()          // probes in the background while pods are recovered
//	err = m.Ready(ctx) // publishes the results, watches, reloads
//	outcome, err := m.Reload(ctx, lifecycle.TriggerAdmin)
//
// A Manager is the one owner of four facts: the configuration that is in force, the intents of
// operators (cordon, drain), the results of probes, and the table computed from them. Every change
// of one of the first three computes a new Plan with pure functions, and passes it to the Publisher
// before the change takes effect; if the Publisher fails, the old Plan stays.
//
// Its parts are layered in one order: background, store (the truth and its plan), rollouts, probes,
// reloader, Manager. Each uses those before it.
//
// A reload reads all files, validates them, probes the handlers, and only then takes the lock. If a
// file has a mistake, nothing changes.
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

// Manager owns the routing of pods. All methods may be called at any time from any goroutine;
// before Ready, reloads wait for it.
type Manager struct {
	// Controller promotes and aborts rollouts.
	*rollout.Controller
	*starts
	*store

	watch   bool // whether the configuration's files are watched
	intents statefile.ByHandler[*Intent]
	probes  *probes
	reloads *reloader
	// first is closed when the probes of Start have finished or probeWait is over.
	first chan struct{}
}

// New publishes a first plan, in which no handler accepts pods yet, and reads stored intents. The
// Manager uses the log of ctx, but does not end with it.
func New(ctx context.Context, o Options) (*Manager, error) {
	past, err := readHistory(o.Dir)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to read the history of changes; starting a new one")
	}
	s := newStore(newBackground(ctx), o.PodCounter, o.Publisher, past)
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
	if err := s.publishFirst(o.Config, intents, decisions); err != nil {
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

// Start starts to probe all handlers, without waiting for the results.
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

// Ready must be called once PodCounter counts all pods. It waits up to probeWait for the probes of
// Start, publishes their results, and starts watching and reloading. Earlier reload requests run
// then.
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
	m.work.Go(m.probes.probeLoop)
	return nil
}

// Close ends the Manager's background work, or abandons it if it does not end in time. The table
// stays.
func (m *Manager) Close() error {
	err := m.background.close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watchers {
		m.drop(w)
	}
	return err
}

// Reload reads the configuration again and applies it: all or nothing. The outcome is from a read
// that began after the call; its Error is also returned. If ctx or the Manager ends, it returns an
// error, but the reload may still run.
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

// Request requests a reload without waiting for it. A request before Ready runs after it.
func (m *Manager) Request(t Trigger) { m.reloads.request(request{trigger: t}) }

// Handlers returns a snapshot of all handlers, sorted by name.
func (m *Manager) Handlers() []Handler {
	all := m.handlers()
	for i := range all {
		all[i].Starts = m.startsOf(all[i])
	}
	return all
}

// Handler returns one handler. The error is of the class ErrNotFound.
func (m *Manager) Handler(name string) (Handler, error) {
	pods := m.pods.Pods()
	m.mu.Lock()
	defer m.mu.Unlock()
	e, there := m.plan.entry(name)
	if !there {
		return Handler{}, m.checkExistsLocked(name)
	}
	h := m.describe(e, pods)
	h.Starts = m.startsOf(h)
	return h, nil
}

// startsOf returns the starts of a handler. A row of failures is over once the handler has become
// ready after the last of them.
func (m *Manager) startsOf(h Handler) Starts {
	s := m.Starts(h.Definition.Name)
	if h.State.Phase == handler.Ready && h.State.Since.After(s.At) {
		s.InARow = 0
	}
	return s
}

// Changes returns the last changes of a handler on this node, oldest first; of all if name is
// empty. They survive restarts. The error is of the class ErrNotFound for an unknown handler
// without changes.
func (m *Manager) Changes(name string) ([]Change, error) {
	all := m.history.last(name)
	if name != "" && len(all) == 0 {
		return nil, m.checkExists(name)
	}
	return all, nil
}

// Watch returns a channel that gets an Event after each change of the table and each reload. It is
// closed when ctx or the Manager ends. A slow reader blocks nothing and misses no change, but gets
// several merged into one Event.
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
