package lifecycle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/probe"
)

// Reload reads the configuration again and puts it in force, all of it or
// nothing. The outcome is that of a reading which began after the call; its
// Error is also returned. The end of ctx ends the waiting, not the reload.
func (m *Manager) Reload(ctx context.Context, t Trigger) (Outcome, error) {
	r := request{trigger: t, done: make(chan Outcome, 1)}
	if !m.queue.add(r) {
		return Outcome{}, errClosed
	}
	select {
	case o, ok := <-r.done:
		if !ok {
			return Outcome{}, errClosed
		}
		return o, o.Error
	case <-ctx.Done():
		return Outcome{}, context.Cause(ctx)
	}
}

// Request asks for a reload and does not wait for it. One that comes before
// Ready is remembered.
func (m *Manager) Request(t Trigger) { m.queue.add(request{trigger: t}) }

// reloads answers requests, one reload at a time, until Close.
func (m *Manager) reloads() {
	for {
		select {
		case <-m.life.Done():
			return
		case <-m.queue.wake:
		}
		all := m.queue.take()
		if len(all) == 0 {
			continue
		}
		o := m.reload(m.life, merged(all))
		for _, r := range all {
			if r.done != nil {
				r.done <- o
			}
		}
	}
}

// reload is one whole transaction.
func (m *Manager) reload(ctx context.Context, r request) Outcome {
	o := Outcome{Trigger: r.trigger, At: time.Now()}
	if a := m.o.Announcer; a != nil {
		if !r.silent {
			a.Reloading(ctx)
		}
		before := m.outcome()
		defer func() {
			if !r.silent || m.outcome() != before {
				a.Reloaded(ctx, m.Current(), m.Handlers())
			}
		}()
	}
	next, err := m.o.Loader.Load(ctx)
	if err != nil && r.patient {
		m.later(request{trigger: r.trigger, silent: r.silent})
		return o
	}
	if err == nil {
		// All of them: what was missing may be there by now, and one that has not
		// changed costs a few stats.
		m.probeAll(ctx, subjects(next), probe.Look, probeWait)
		err = m.put(next, &o, r.silent)
	}
	switch {
	case err != nil && r.silent && m.aware(err):
		return o
	case err != nil:
		m.failed(&o, err)
	}
	m.report(ctx, o, r.silent)
	select {
	case m.rewatch <- struct{}{}:
	default: // it will be looked at anyway
	}
	return o
}

// outcome is that of the last reload that has happened, or nil.
func (m *Manager) outcome() *Outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// put makes a loaded configuration the one in force. A silent reload that
// changes nothing has not happened, unless the one before it failed: what is wrong
// with the files is told until they are right.
func (m *Manager) put(next *config.Config, o *Outcome, silent bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.plan
	effective, live, pending := config.Reload(m.truth.config, next)
	o.Diff = Compare(m.truth.config, next)
	o.Live, o.NeedRestart = live, pending
	changed, err := m.apply(func(t *truth) error {
		t.adopt(effective)
		t.loaded, t.trigger, t.pending = o.At, o.Trigger, pending
		return nil
	})
	if err != nil {
		return err
	}
	m.rollouts.settle()
	failed := m.last != nil && m.last.Error != nil
	if o.Changed = m.plan != before; silent && !o.Changed && !failed && len(live) == 0 {
		o.Generation = m.plan.Generation
		if len(changed) > 0 {
			m.tell(changed, nil)
		}
		return nil
	}
	m.problems = problemsOf(next)
	o.NotReady = m.plan.notReady()
	m.done(o, changed)
	return nil
}

// done notes a reload that is over, and tells watchers; mu is held.
func (m *Manager) done(o *Outcome, changed []string) {
	o.Generation, o.Digest, o.Took = m.plan.Generation, m.plan.Digest, time.Since(o.At)
	m.last = o.copy()
	m.counts.reloaded(o)
	m.tell(changed, m.last)
}

// aware says whether everything that an error says was known at the start, or is
// what the last reload failed with.
func (m *Manager) aware(err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last != nil && slices.Equal(m.last.Problems, lines(err)) {
		return true
	}
	return !slices.ContainsFunc(lines(err), func(line string) bool { return !slices.Contains(m.problems, line) })
}

// failed notes a reload that changed nothing.
func (m *Manager) failed(o *Outcome, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*o = Outcome{Trigger: o.Trigger, At: o.At, Error: err, Problems: lines(err)}
	m.done(o, nil)
}

func (o *Outcome) copy() *Outcome {
	c := *o
	return &c
}

// lines are the single problems of an error.
func lines(err error) []string {
	var problems config.Problems
	if !errors.As(err, &problems) {
		return []string{err.Error()}
	}
	all := make([]string, len(problems))
	for i, p := range problems {
		all[i] = p.Error()
	}
	return all
}

// settle is how long files are left alone before a failed reading is repeated.
const settle = 500 * time.Millisecond

// later asks again when files had time to become whole.
func (m *Manager) later(r request) {
	m.work.Go(func() {
		select {
		case <-m.life.Done():
		case <-time.After(settle):
			m.queue.add(r)
		}
	})
}

// report says in the log what a reload did.
func (m *Manager) report(ctx context.Context, o Outcome, silent bool) {
	entry := log.G(ctx).WithFields(log.Fields{"trigger": o.Trigger, "generation": o.Generation})
	for _, c := range o.NeedRestart {
		entry.WithField("key", c.String()).Warn("Changed setting takes effect only after a restart of berth")
	}
	switch {
	case o.Error != nil:
		for _, p := range o.Problems {
			entry.WithField("problem", p).Error("Failed to reload configuration")
		}
	case !o.Changed && (silent || o.Trigger == TriggerFiles) && len(o.Live) == 0:
		entry.Debug("Configuration reloaded without changes")
	default:
		entry.WithFields(log.Fields{
			"added": o.Diff.Added, "changed": o.Diff.Changed, "removed": o.Diff.Removed, "default": o.Diff.DefaultTo,
			"live": o.Live, "not_ready": o.NotReady, "took": o.Took.Round(time.Millisecond).String(),
		}).Info("Configuration reloaded")
	}
}
