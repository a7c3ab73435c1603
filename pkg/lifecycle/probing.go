package lifecycle

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

const (
	// probeWait is how long a start or reload waits for probes. Later results count when they
	// arrive.
	probeWait = 3 * time.Second
	// unbounded waits until all probes finish: each has its own bound, so an operator's probe ends
	// by itself or with its caller.
	unbounded = 0
	// probesAtOnce bounds the probes that start at the same time. A probe still running after
	// stepAside releases its slot, so that hanging runtimes do not delay the others.
	probesAtOnce = 16
	stepAside    = 250 * time.Millisecond
	// capabilityWait bounds the capability check, which delays the handler's verdict. What is not
	// found in time is unknown until the next probe.
	capabilityWait = time.Second
)

// probes checks whether handlers can run pods, and their capabilities.
type probes struct {
	*store
	rollouts *rollouts

	prober Prober
	source CapabilitySource
	// underway counts the running probes by the digest of a Definition; mu guards it.
	underway map[string]int
}

// slots limits how many probes start at a time.
type slots chan struct{}

// take waits for a slot, which is released when give is called, but at the latest after hold.
func (t slots) take(hold time.Duration) (give func()) {
	t <- struct{}{}
	once := sync.OnceFunc(func() { <-t })
	timer := time.AfterFunc(hold, once)
	return func() { timer.Stop(); once() }
}

// probeAll probes handlers in parallel. It returns when all have answered (finished is set), when
// the time patience is over unless it is unbounded, or when ctx ends. The next plan has the results
// so far; later ones are published when they arrive. A probe after a failed one is at least as deep.
func (p *probes) probeAll(ctx context.Context, all []*handler.Definition, depth probe.Depth, patience time.Duration) (finished bool) {
	slot := make(slots, probesAtOnce)
	before := p.snapshot()
	late := false // guarded by mu
	configured := definitions(before.config)
	var ongoing sync.WaitGroup
	for _, d := range all {
		v, known := before.verdictOf(d)
		if was := configured[d.Name]; !known && was != nil {
			v, _ = before.verdictOf(was) // after a failed self-check a changed handler must pass one
		}
		ongoing.Add(1)
		leave := p.enter(d.Digest())
		p.work.Go(func() {
			defer ongoing.Done()
			defer leave()
			defer slot.take(stepAside)()
			r := p.probe(d, max(depth, v.depth))
			if p.life.Err() != nil {
				return
			}
			p.mu.Lock()
			p.note(r, late)
			p.mu.Unlock()
			if r.err == nil && !r.learned {
				p.work.Go(func() { p.learnCapabilities(r) })
			}
		})
	}
	done := make(chan struct{})
	p.work.Go(func() { defer close(done); ongoing.Wait() })
	if patience > unbounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	select {
	case <-done:
		finished = true
	case <-ctx.Done():
	case <-p.life.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	late = true
	p.rollouts.settle()
	return finished
}

// probe probes a handler, and its capabilities if it can run pods. Before pods are routed,
// capabilities are left for later: routing must not wait for them.
func (p *probes) probe(d *handler.Definition, depth probe.Depth) result {
	rt, err := p.prober.Check(p.life, d, depth)
	r := result{definition: d, at: time.Now(), depth: depth, runtime: rt, err: err}
	select {
	case <-p.routing:
		if err == nil {
			r.table, r.learned = p.capabilities(r), true
		}
	default:
	}
	return r
}

func (p *probes) capabilities(r result) capability.Table {
	ctx, cancel := context.WithTimeout(p.life, capabilityWait)
	defer cancel()
	return p.source.Capabilities(ctx, r.definition, r.runtime)
}

// learnCapabilities checks the capabilities once pods are routed, and stores them unless a later
// probe has stored some first.
func (p *probes) learnCapabilities(r result) {
	select {
	case <-p.routing:
	case <-p.life.Done():
		return
	}
	digest, table := r.definition.Digest(), p.capabilities(r)
	if err := p.change(func(t *truth) error {
		if v, known := t.verdicts[digest]; known && !v.learned {
			v.table, v.learned = table, true
			t.verdicts[digest] = v
		}
		return nil
	}); err != nil {
		log.G(p.life).WithError(err).WithField("handler", r.definition.Name).Error("Failed to publish handler capabilities")
	}
}

// note records a probe result. The caller of probeAll publishes results that are in time; note
// publishes a late one. mu is held.
func (p *probes) note(r result, late bool) {
	if !late {
		p.truth = p.truth.copy()
		p.truth.note(r)
		p.logTransient(r)
		return
	}
	if err := p.publish(func(t *truth) error { t.note(r); return nil }); err != nil {
		log.G(p.life).WithError(err).WithField("handler", r.definition.Name).Error("Failed to publish probe result")
	}
	p.logTransient(r)
	p.rollouts.settle()
}

// logTransient logs once that a handler stays ready although its probe failed; mu is held.
func (p *probes) logTransient(r result) {
	if v, known := p.truth.verdictOf(r.definition); known && v.transient != "" && v.tries == 1 {
		log.G(p.life).WithError(r.err).WithField("handler", r.definition.Name).Warn("Transient probe failure; retrying")
	}
}

// enter counts a probe as running until leave is called.
func (p *probes) enter(digest string) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.underway[digest]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.underway[digest]--; p.underway[digest] == 0 {
			delete(p.underway, digest)
		}
	}
}

// idle returns the Definitions without a running probe.
func (p *probes) idle(all []*handler.Definition) []*handler.Definition {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(all, func(d *handler.Definition) bool { return p.underway[d.Digest()] > 0 })
}

// lookInterval is the interval at which probeLoop checks for due probes and stale plans.
const lookInterval = time.Second

// probeLoop probes all handlers at intervals, failed ones more often, and drops handlers that are
// no longer configured once their last pod is gone.
func (p *probes) probeLoop() {
	ticks := time.NewTicker(lookInterval)
	defer ticks.Stop()
	looked, asked := time.Now(), time.Now()
	for {
		select {
		case <-p.life.Done():
			return
		case <-ticks.C:
		}
		t := p.snapshot()
		h := t.config.Handlers
		all, depth := t.due(time.Now()), probe.Look
		anew := h.AskInterval > 0 && time.Since(asked) >= h.AskInterval
		if anew || h.ProbeInterval > 0 && time.Since(looked) >= h.ProbeInterval {
			all, looked = Candidates(t.config), time.Now()
		}
		if anew {
			asked, depth = looked, probe.Ask
		}
		p.look(p.idle(all), depth)
		if p.stale() {
			p.refresh()
		}
	}
}

// look probes in the background: a hanging runtime does not delay the next probe of others.
func (p *probes) look(all []*handler.Definition, depth probe.Depth) {
	if len(all) == 0 {
		return
	}
	p.spawn(func(ctx context.Context) {
		p.probeAll(ctx, all, depth, probeWait)
		p.refresh()
	})
}
