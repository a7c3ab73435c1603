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
	"path/filepath"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
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
	intents intentFile
	probes  *probes
	reloads *reloader
	// first is closed when the probes of Start are over.
	first chan struct{}
}

// New checks the options and publishes a first plan, in which no handler
// accepts pods yet. Intents of an earlier daemon are read. The log of ctx is that
// of the Manager; its end is not.
func New(ctx context.Context, o Options) (*Manager, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	past, err := readHistory(o.Dir)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to read the history of changes; starting a new one")
	}
	s := newStore(newBackground(ctx), o.Live, o.Publisher, past)
	r := newRollouts(s, o.Dir)
	p := &probes{store: s, rollouts: r, prober: o.Prober, source: o.CapabilitySource}
	reloads := &reloader{store: s, rollouts: r, probes: p, loader: o.Loader, announcer: o.Announcer, queue: &queue{wake: make(chan struct{}, 1)}, rewatch: make(chan struct{}, 1)}
	m := &Manager{
		Controller: r.controller, starts: &starts{probes: p, logs: map[string]*startLog{}}, store: s, watch: o.Config.Handlers.Watch, intents: intentFile{filepath.Join(o.Dir, "intents.json")}, probes: p,
		reloads: reloads, first: make(chan struct{}),
	}
	intents, err := m.intents.read()
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
	m.reloads.queue.close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watchers {
		m.drop(w)
	}
	return err
}
