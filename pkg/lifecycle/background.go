package lifecycle

import (
	"context"
	"errors"
	"sync"
	"time"
)

// background runs work that has no caller.
type background struct {
	life context.Context // ends with close
	end  context.CancelFunc
	work sync.WaitGroup

	gate sync.Mutex // held to begin work, and to close
}

// newBackground returns a background with the values of ctx, but not its cancellation.
func newBackground(ctx context.Context) *background {
	b := &background{}
	b.life, b.end = context.WithCancel(context.WithoutCancel(ctx))
	return b
}

// begin reports whether a caller may start work. The caller must then end it with work.Done; close
// waits for that.
func (b *background) begin() bool {
	b.gate.Lock()
	defer b.gate.Unlock()
	if b.life.Err() != nil {
		return false
	}
	b.work.Add(1)
	return true
}

// spawn runs f in a goroutine with a context that ends with close, which waits for f. After close
// it returns false and does not run f.
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

// closePatience is how long close waits for work that is itself blocked, such as a read from an
// unresponsive network file system.
const closePatience = 5 * time.Second

// close ends the work, or abandons it after closePatience.
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
		return errors.New("a read of configuration files or a probe of a runtime did not finish in time; not waiting for it any longer")
	}
}

// errClosed is returned for a reload or probe after close.
var errClosed = errors.New("the daemon is stopping")
