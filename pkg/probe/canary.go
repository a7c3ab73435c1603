package probe

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berth-cri/berth/pkg/handler"
)

// Depth is how closely a handler is looked at.
type Depth int

const (
	// Look asks a runtime only if it is new.
	Look Depth = iota
	// Ask asks it in any case.
	Ask
	// WithCanary also runs a pod, whatever the handler's configuration says.
	WithCanary
)

// Canary runs a pod of its own under a handler, and leaves nothing of it. The error
// says at which step it failed.
type Canary interface {
	Canary(ctx context.Context, d *handler.Definition) error
}

// CanaryRuns is what came of the canary pods of a handler since the daemon started.
type CanaryRuns struct {
	Good, Bad uint64
	// Took is how long the last one did.
	Took time.Duration
}

// Canaries are a Checker that also runs canary pods: of handlers that want them,
// whenever their runtime is new or asked, and whenever somebody insists.
type Canaries struct {
	*Checker
	ready  chan struct{} // closed when canary is set
	once   sync.Once
	canary Canary

	flights singleflight.Group // by the digest of a Definition

	mu   sync.Mutex
	good map[string]Identity // by the digest of a Definition: of which runtime a pod ran
	runs map[string]CanaryRuns
}

// NewCanaries makes Canaries that wait for who runs them.
func NewCanaries(c *Checker) *Canaries {
	return &Canaries{Checker: c, ready: make(chan struct{}), good: map[string]Identity{}, runs: map[string]CanaryRuns{}}
}

// Serve says who runs pods from now on. It counts once.
func (c *Canaries) Serve(by Canary) {
	c.once.Do(func() { c.canary = by; close(c.ready) })
}

// Check is that of the Checker, and of a canary pod if there is to be one.
func (c *Canaries) Check(ctx context.Context, d *handler.Definition, depth Depth) (*Runtime, error) {
	rt, err := c.Checker.Check(ctx, d, depth)
	if err != nil || depth < WithCanary && (!d.ProbeCanary || depth == Look && c.ran(d, rt)) {
		return rt, err
	}
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// Who comes while one runs takes what comes of that.
	if _, err, _ := c.flights.Do(d.Digest(), func() (any, error) {
		begun := time.Now()
		err := c.canary.Canary(ctx, d)
		c.note(d, rt, time.Since(begun), err)
		return nil, err
	}); err != nil {
		return nil, err
	}
	return rt, nil
}

// ran says whether a pod has run on exactly that.
func (c *Canaries) ran(d *handler.Definition, rt *Runtime) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	on, known := c.good[d.Digest()]
	return known && on.Same(rt.Identity)
}

func (c *Canaries) note(d *handler.Definition, rt *Runtime, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := c.runs[d.Name]
	runs.Took = took
	if err != nil {
		runs.Bad++
		delete(c.good, d.Digest())
	} else {
		runs.Good++
		c.good[d.Digest()] = rt.Identity
	}
	c.runs[d.Name] = runs
}

// Runs are those of each handler that had any.
func (c *Canaries) Runs() map[string]CanaryRuns {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.runs)
}
