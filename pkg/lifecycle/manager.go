package lifecycle

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Manager owns what pods are routed by. All methods may be called at any time
// from any goroutine; before Ready, reloads wait for it.
type Manager struct {
	// Controller promotes and aborts rollouts.
	*rollout.Controller

	o     Options
	disk  intentFile
	queue *queue
	// rewatch has room for one: the Loader's paths may be others.
	rewatch chan struct{}

	life context.Context // ends with Close
	end  context.CancelFunc
	work sync.WaitGroup

	// first is closed when the probes of Start are over, routing when pods are routed.
	first, routing chan struct{}

	// mu is held to make and publish a plan, never while files are read or
	// runtimes are asked.
	mu       sync.Mutex
	truth    *truth
	plan     *Plan
	able     map[string]capability.Table // what handlers can do, as watchers were told last
	last     *Outcome
	counts   counts
	problems []string
	opened   bool // pods are routed
	closed   bool
	watchers map[*watcher]struct{}

	rollouts rollouts
	flying   flights
	// polls says that changes of files are not told by the kernel.
	polls atomic.Bool
}

// New checks the options and publishes a first plan, in which no handler
// accepts pods yet. Intents of an earlier daemon are read. The log of ctx is that
// of the Manager; its end is not.
func New(ctx context.Context, o Options) (*Manager, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	m := &Manager{
		o: o, disk: newIntentFile(o.Dir), queue: newQueue(), rewatch: make(chan struct{}, 1), first: make(chan struct{}), routing: make(chan struct{}),
		counts: newCounts(), watchers: map[*watcher]struct{}{},
	}
	intents, err := m.disk.read()
	if err != nil {
		m.problems = append(m.problems, err.Error())
	}
	m.rollouts = rollouts{m, rollout.NewFile(o.Dir)}
	m.Controller = rollout.New(m.rollouts)
	decisions, err := m.rollouts.file.Read()
	if err != nil {
		m.problems = append(m.problems, err.Error())
	}
	m.problems = append(m.problems, problemsOf(o.Config)...)
	m.truth = &truth{
		config: o.Config, loaded: time.Now(), trigger: TriggerStart, intents: intents, decisions: decisions,
		verdicts: map[string]verdict{}, tables: map[string]capability.Table{}, retired: map[string]*handler.Definition{},
	}
	m.plan = planned(m.truth, nil, &Plan{}, m.generation())
	if err := o.Publisher.Publish(m.plan); err != nil {
		return nil, err
	}
	m.life, m.end = context.WithCancel(context.WithoutCancel(ctx))
	return m, nil
}

func problemsOf(c *config.Config) []string {
	var all []string
	for _, p := range c.Problems {
		all = append(all, p.Error())
	}
	return all
}

// Start begins to probe all handlers, and does not wait for that.
func (m *Manager) Start() {
	for _, p := range m.problems {
		log.G(m.life).WithField("problem", p).Warn("Skipping invalid part of the configuration")
	}
	m.work.Go(func() {
		defer close(m.first)
		m.probeAll(m.life, subjects(m.snapshot().config), probe.Look, probeWait)
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
	if m.o.Config.Handlers.Watch {
		m.watchFiles()
	}
	m.work.Go(m.reloads)
	m.work.Go(m.looks)
	return nil
}

// closePatience is how long Close waits for work that waits for something itself,
// such as a file on a network file system that is gone.
const closePatience = 5 * time.Second

// Close ends what the Manager does by itself, or leaves it behind if it does not
// end in time. The table stays as it is.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.end()
	ended := make(chan struct{})
	go func() { defer close(ended); m.work.Wait() }()
	var err error
	select {
	case <-ended:
	case <-time.After(closePatience):
		err = errors.New("a read of configuration files or a probe of a runtime did not finish in time; shutting down without it")
	}
	m.queue.close()
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watchers {
		m.drop(w)
	}
	return err
}

// begin says whether a caller may start work, which it must then end by
// m.work.Done. Close waits for that.
func (m *Manager) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.work.Add(1)
	}
	return !m.closed
}

// snapshot is the truth of the moment, which must not be changed.
func (m *Manager) snapshot() *truth {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.truth
}

// change makes a change of the truth and publishes what follows from it. When
// either fails, nothing has changed.
func (m *Manager) change(change func(*truth) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed, err := m.apply(change)
	if len(changed) > 0 {
		m.tell(changed, nil)
	}
	return err
}

// apply is change with mu held, for callers that tell watchers themselves. It
// returns the handlers that are not as they were, or that can do other things.
func (m *Manager) apply(change func(*truth) error) (changed []string, err error) {
	t := m.truth.copy()
	if err := change(t); err != nil {
		return nil, err
	}
	live := m.o.Live.Live()
	t.forget(live)
	p := planned(t, live, m.plan, m.generation())
	if p.same(m.plan) {
		m.truth = t
		return m.abler(nil), nil
	}
	if err := m.o.Publisher.Publish(p); err != nil {
		return nil, err
	}
	changed = changedNames(m.plan, p)
	m.logStates(p)
	m.truth, m.plan = t, p
	return m.abler(changed), nil
}

// abler adds the handlers that can do other things than was told last; mu is held.
func (m *Manager) abler(changed []string) []string {
	before := m.able
	m.able = m.truth.able()
	for name, t := range m.able {
		if was, there := before[name]; there && !reflect.DeepEqual(was, t) {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed)
}

// open publishes the last plan of the first generation.
func (m *Manager) open() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	changed, err := m.apply(func(*truth) error { return nil })
	if len(changed) > 0 {
		m.tell(changed, nil)
	}
	if m.opened = err == nil; m.opened {
		close(m.routing)
	}
	return err
}

// generation is that of the next plan; mu is held. All plans before Ready are of
// the first one: nothing has been routed by them.
func (m *Manager) generation() uint64 {
	if !m.opened {
		return 1
	}
	return m.plan.Generation + 1
}

// logStates says which handlers are in another state in the next plan.
func (m *Manager) logStates(p *Plan) {
	for _, e := range p.Entries {
		before, there := m.plan.entry(e.Definition.Name)
		if before.State == e.State || e.State.Phase == handler.Ready && (!there || before.State.Reason == rollout.NotProbedYet) {
			continue
		}
		entry := log.G(m.life).WithFields(log.Fields{
			"handler": e.Definition.Name, "state": e.State.Phase, "reason": e.State.Reason, "generation": p.Generation,
		})
		if e.State.Phase == handler.NotReady {
			entry.Warn("Handler cannot run pods")
			continue
		}
		entry.Info("Handler state changed")
	}
}

// refresh publishes what follows from what is known, and logs what keeps it from that.
func (m *Manager) refresh() {
	if err := m.change(func(*truth) error { return nil }); err != nil {
		log.G(m.life).WithError(err).Error("Failed to update the table of handlers")
	}
}

// errClosed is the answer to a reload that comes too late.
var errClosed = errors.New("cannot reload: the daemon is stopping")
