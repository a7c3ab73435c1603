package probe

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
)

// Checker finds out whether handlers can run pods on this machine.
type Checker struct {
	prober *Prober
	// patience is how long looking at files may take.
	patience time.Duration

	mu    sync.Mutex
	looks map[string]*look // by the digest of a Definition
}

// look is one look at what a machine lacks. Its result is written before done is
// closed.
type look struct {
	done   chan struct{}
	result error
}

// NewChecker makes a Checker that asks runtimes through p.
func NewChecker(p *Prober) *Checker {
	return &Checker{prober: p, patience: 2 * time.Second, looks: map[string]*look{}}
}

// Check looks at everything that the handler needs of this machine, and asks its
// runtime what it is if that is not known yet. A handler for which nothing has
// changed costs a few stats. The error says why it cannot run pods.
func (c *Checker) Check(ctx context.Context, d *handler.Definition) (*Runtime, error) {
	rt, err := c.prober.Probe(ctx, d)
	// What is missing says more than that the binary could not be run.
	if missing := c.missing(ctx, d); missing != nil {
		return nil, missing
	}
	return rt, err
}

// missing looks at files from a goroutine of its own, of which there is at most
// one for each Definition: on a dead network mount it never returns.
func (c *Checker) missing(ctx context.Context, d *handler.Definition) error {
	l := c.look(d)
	patience := time.NewTimer(c.patience)
	defer patience.Stop()
	select {
	case <-l.done:
		return l.result
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-patience.C:
		return fmt.Errorf("a file of handler %q cannot even be looked at: is it on a network file system that is gone? %w",
			d.Name, errdefs.ErrUnavailable)
	}
}

func (c *Checker) look(d *handler.Definition) *look {
	key := d.Digest()
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.looks[key]; l != nil {
		return l
	}
	l := &look{done: make(chan struct{})}
	c.looks[key] = l
	go func() {
		l.result = config.Lacking(d)
		c.mu.Lock()
		delete(c.looks, key)
		c.mu.Unlock()
		close(l.done)
	}()
	return l
}
