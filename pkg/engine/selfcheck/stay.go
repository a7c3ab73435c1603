package selfcheck

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/overhead"
)

// Staying is a self-check pod that runs until it is removed.
type Staying struct {
	*pod.Sandbox
	// StandsIn says that its process is in place of a container's.
	StandsIn bool
	from     *Pods
	once     sync.Once
	err      error
}

// Stay starts a self-check pod that stays. After an error nothing is left of it, or what is
// goes away later.
func (b *Pods) Stay(ctx context.Context, d *handler.Definition) (_ overhead.SelfCheck, err error) {
	b.mu.Lock()
	err = b.join()
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.running.Done()
		}
	}()
	if limit := d.Limits.StartTimeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	s, standsIn, err := b.record(ctx, d, nil)
	if err != nil {
		return nil, err
	}
	c := &Staying{Sandbox: s, StandsIn: standsIn, from: b}
	err = b.begin(ctx, s)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(err, b.remove(s, func() {}))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.staying[s.ID()] = c
	return c, nil
}

// Remove implements overhead.Canary.
func (c *Staying) Remove() error {
	c.once.Do(func() {
		b := c.from
		defer b.running.Done()
		b.mu.Lock()
		delete(b.staying, c.ID())
		b.mu.Unlock()
		c.err = b.remove(c.Sandbox, func() {})
	})
	return c.err
}

// Present are the self-check pods that stay.
func (b *Pods) Present() []*Staying {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*Staying
	for _, c := range b.staying {
		all = append(all, c)
	}
	return all
}
