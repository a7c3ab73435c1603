package pull

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/step"
)

// errAbandoned cancels a shared pull after its last caller has left.
var errAbandoned = errors.New("all callers have gone")

// coalescer lets callers of the same pull share one attempt. The attempt is cancelled when the last
// caller leaves, which singleflight does not support.
type coalescer struct {
	mu      sync.Mutex
	running map[string]*sharedPull
}

type sharedPull struct {
	cancel context.CancelCauseFunc
	// waiting is the number of callers; guarded by coalescer.mu.
	waiting int
	// done is closed after img and err are set.
	done chan struct{}
	img  *catalog.Image
	err  error
}

// do returns the outcome of run, which is called once for all callers of a key that come while it
// runs. The context of run carries the first caller's values, and no caller's deadline. When ctx
// ends first, do returns ctx's error.
func (f *coalescer) do(ctx context.Context, key string, run func(context.Context) (*catalog.Image, error)) (*catalog.Image, error) {
	fl, shared := f.join(ctx, key, run)
	if shared {
		_, end := step.Begin(ctx, step.Shared)
		defer func() { end(nil) }()
	}
	select {
	case <-fl.done:
		return fl.img, fl.err
	case <-ctx.Done():
		f.leave(key, fl)
		return nil, ctx.Err()
	}
}

// join returns a shared pull, and whether another caller has begun it.
func (f *coalescer) join(ctx context.Context, key string, run func(context.Context) (*catalog.Image, error)) (fl *sharedPull, shared bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.running[key]; ok {
		fl.waiting++
		return fl, true
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	fl = &sharedPull{cancel: cancel, waiting: 1, done: make(chan struct{})}
	f.running[key] = fl
	go func() {
		fl.img, fl.err = run(ctx)
		f.mu.Lock()
		f.end(key, fl, nil)
		f.mu.Unlock()
		close(fl.done)
	}()
	return fl, false
}

// leave removes a caller. The last one ends the pull, and a later caller starts another.
func (f *coalescer) leave(key string, fl *sharedPull) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl.waiting--; fl.waiting == 0 {
		f.end(key, fl, errAbandoned)
	}
}

// end ends a shared pull. The caller holds mu.
func (f *coalescer) end(key string, fl *sharedPull, cause error) {
	if f.running[key] == fl {
		delete(f.running, key)
	}
	fl.cancel(cause)
}
