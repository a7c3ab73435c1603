package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"
)

// background is what goes on without a caller.
type background struct {
	life context.Context // ends with close
	end  context.CancelFunc
	work sync.WaitGroup

	gate sync.Mutex // held to begin work, and to close
}

// newBackground has the values of ctx, not its end.
func newBackground(ctx context.Context) *background {
	b := &background{}
	b.life, b.end = context.WithCancel(context.WithoutCancel(ctx))
	return b
}

// begin says whether a caller may start work, which it must then end by
// work.Done. close waits for that.
func (b *background) begin() bool {
	b.gate.Lock()
	defer b.gate.Unlock()
	if b.life.Err() != nil {
		return false
	}
	b.work.Add(1)
	return true
}

// spawn runs f beside its caller, with a context that ends with close, which waits for f. It
// returns false, and does not run f, once close was called.
func (b *background) spawn(f func(ctx context.Context)) bool {
	if !b.begin() {
		return false
	}
	go func() {
		defer b.work.Done()
		f(b.life)
	}()
	return true
}

// closePatience is how long close waits for work that waits for something itself,
// such as a file on a network file system that is gone.
const closePatience = 5 * time.Second

// close ends the work, or leaves it behind if it does not end in time.
func (b *background) close() error {
	b.gate.Lock()
	b.end()
	b.gate.Unlock()
	ended := make(chan struct{})
	go func() { defer close(ended); b.work.Wait() }()
	select {
	case <-ended:
		return nil
	case <-time.After(closePatience):
		return errors.New("a read of configuration files or a probe of a runtime did not finish in time; shutting down without it")
	}
}

// errClosed is the answer to a reload that comes too late.
var errClosed = errors.New("cannot reload: the daemon is stopping")
