package lifecycle

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

const (
	// probeWait is how long a start or reload waits for runtimes. The answer of a
	// slower one counts when it comes.
	probeWait = 3 * time.Second
	// probesAtOnce bounds the runtimes that are asked at the same time. Some that hang
	// must not take the turns of those that do not.
	probesAtOnce = 64
)

// probeAll probes handlers in parallel, and waits for all or for the time to be
// up. Late answers are published when they come; the others with whatever is
// published next.
func (m *Manager) probeAll(ctx context.Context, definitions []*handler.Definition) {
	turn := make(chan struct{}, probesAtOnce)
	results := &results{}
	var all sync.WaitGroup
	for _, d := range definitions {
		all.Add(1)
		m.work.Go(func() {
			defer all.Done()
			turn <- struct{}{}
			defer func() { <-turn }()
			rt, err := m.o.Prober.Check(m.life, d)
			if m.life.Err() != nil {
				return
			}
			r := result{d, time.Now(), rt, err}
			if results.add(r) {
				return
			}
			m.note(r)
		})
	}
	done := make(chan struct{})
	m.work.Go(func() { defer close(done); all.Wait() })
	select {
	case <-done:
	case <-time.After(probeWait):
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.truth.copy()
	for _, r := range results.close() {
		t.note(r)
	}
	m.truth = t
	m.settle()
}

// note publishes what a probe found that nobody waits for any more.
func (m *Manager) note(r result) {
	if err := m.change(func(t *truth) error { t.note(r); return nil }); err != nil {
		log.G(m.life).WithError(err).WithField("handler", r.definition.Name).Error("What a probe found could not be published")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settle()
}

// result is what a probe found.
type result struct {
	definition *handler.Definition
	at         time.Time
	runtime    *probe.Runtime
	err        error
}

// results collects until it is closed.
type results struct {
	mu     sync.Mutex
	closed bool
	all    []result
}

// add says false once closed.
func (r *results) add(one result) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.all = append(r.all, one)
	return true
}

func (r *results) close() []result {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.all
}

// lookInterval is the time between looks at pods, which wait for nothing.
const lookInterval = time.Second

// looks probes all handlers in intervals, and lets those that are no longer
// configured go with their last pod.
func (m *Manager) looks() {
	ticks := time.NewTicker(lookInterval)
	defer ticks.Stop()
	for last := time.Now(); ; {
		select {
		case <-m.life.Done():
			return
		case <-ticks.C:
		}
		c := m.snapshot().config
		switch interval := c.Handlers.ProbeInterval; {
		case interval > 0 && time.Since(last) >= interval:
			m.probeAll(m.life, subjects(c))
			m.refresh()
			last = time.Now()
		case m.stale():
			m.refresh()
		}
	}
}

// stale says whether a handler that only its pods keep in the table has come, or
// may go.
func (m *Manager) stale() bool {
	live := m.o.Live.Live()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.plan.Entries {
		if !e.Configured && live[e.Definition.Name] == 0 {
			return true
		}
		delete(live, e.Definition.Name)
	}
	return len(live) > 0
}
