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
	// probeWait is how long a start or reload waits for runtimes. The answer of a
	// slower one counts when it comes.
	probeWait = 3 * time.Second
	// toTheEnd is how long an operator's probe waits: each of its parts has a bound of
	// its own, so it ends by itself, or with its caller.
	toTheEnd = 0
	// probesAtOnce bounds the runtimes that begin to be asked at the same time. One
	// that has not answered after stepAside makes room for the next, so that some
	// that hang do not take the turns of those that do not.
	probesAtOnce = 16
	stepAside    = 250 * time.Millisecond
	// capabilityWait bounds the look at what a handler can do: that keeps its verdict
	// waiting. What is not found out in time is unknown until the next probe.
	capabilityWait = time.Second
)

// probes finds out whether handlers can run pods, and what they can do.
type probes struct {
	*store
	rollouts *rollouts

	prober Prober
	source CapabilitySource
	// underway counts the probes that have not ended, by the digest of a Definition. mu
	// guards it.
	underway map[string]int
}

// turns lets some go at a time.
type turns chan struct{}

// take waits for a turn, which ends when the time is up or give is called.
func (t turns) take(long time.Duration) (give func()) {
	t <- struct{}{}
	once := sync.OnceFunc(func() { <-t })
	timer := time.AfterFunc(long, once)
	return func() { timer.Stop(); once() }
}

// probeAll probes handlers in parallel, and waits for all, for the time to be up
// unless it is toTheEnd, or for ctx; finished is set if all have answered. Late answers are
// published when they come; the others with whatever is published next. Those whose last
// probe failed are looked at as closely again.
func (p *probes) probeAll(ctx context.Context, all []*handler.Definition, depth probe.Depth, patience time.Duration) (finished bool) {
	turn := make(turns, probesAtOnce)
	before := p.snapshot()
	late := false // guarded by mu
	configured := definitions(before.config)
	var ongoing sync.WaitGroup
	for _, d := range all {
		v, known := before.verdictOf(d)
		if was := configured[d.Name]; !known && was != nil {
			v, _ = before.verdictOf(was) // a change of what failed its self-check pod has to pass one
		}
		ongoing.Add(1)
		leave := p.enter(d.Digest())
		p.work.Go(func() {
			defer ongoing.Done()
			defer leave()
			defer turn.take(stepAside)()
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
	if patience > toTheEnd {
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

// probe looks at a handler, and at what it can do if it can run pods. Until pods are
// routed that is left for later: they must not wait for it.
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

// learnCapabilities does that once pods are routed, unless a later probe has by then.
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

// note takes over what a probe found. Others may publish it before the round ends; a late one
// is published here, as nothing else does. mu is held.
func (p *probes) note(r result, late bool) {
	if !late {
		p.truth = p.truth.copy()
		p.truth.note(r)
		p.tellDoubt(r)
		return
	}
	if err := p.publish(func(t *truth) error { t.note(r); return nil }); err != nil {
		log.G(p.life).WithError(err).WithField("handler", r.definition.Name).Error("Failed to publish probe result")
	}
	p.tellDoubt(r)
	p.rollouts.settle()
}

// tellDoubt logs once that a handler stays ready although its probe failed; mu is held.
func (p *probes) tellDoubt(r result) {
	if v, known := p.truth.verdictOf(r.definition); known && v.doubt != "" && v.tries == 1 {
		log.G(p.life).WithError(r.err).WithField("handler", r.definition.Name).Warn("Transient probe failure; retrying")
	}
}

// enter counts a probe, until leave is called.
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

// resting are those of which no probe is under way.
func (p *probes) resting(all []*handler.Definition) []*handler.Definition {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(all, func(d *handler.Definition) bool { return p.underway[d.Digest()] > 0 })
}

// lookInterval is the time between looks at pods, which wait for nothing.
const lookInterval = time.Second

// looks probes all handlers in intervals, those that failed more often, and lets
// those that are no longer configured go with their last pod.
func (p *probes) looks() {
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
		p.look(p.resting(all), depth)
		if p.stale() {
			p.refresh()
		}
	}
}

// look probes in the background: a runtime that hangs does not delay the next look at
// others.
func (p *probes) look(all []*handler.Definition, depth probe.Depth) {
	if len(all) == 0 {
		return
	}
	p.spawn(func(ctx context.Context) {
		p.probeAll(ctx, all, depth, probeWait)
		p.refresh()
	})
}
