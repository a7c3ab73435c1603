package pull

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/step"
)

// errAbandoned is the cause of a flight's end when no caller waits for it any more.
var errAbandoned = errors.New("all callers have gone")

// flights lets callers who want the same thing share one attempt. A caller who
// leaves does not end it for the others; the last one does, which singleflight has no way for.
type flights struct {
	mu      sync.Mutex
	running map[string]*flight
}

type flight struct {
	cancel context.CancelCauseFunc
	// waiting callers; guarded by flights.mu.
	waiting int
	// done is closed after img and err are set.
	done chan struct{}
	img  *catalog.Image
	err  error
}

// do returns the outcome of fly, which runs once for all callers of a key who
// come while it runs. fly's context carries the first caller's values and has
// no caller's deadline. When ctx ends first, do returns ctx's error.
func (f *flights) do(ctx context.Context, key string, fly func(context.Context) (*catalog.Image, error)) (*catalog.Image, error) {
	fl, shared := f.join(ctx, key, fly)
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

// join returns a flight, and whether another caller has begun it.
func (f *flights) join(ctx context.Context, key string, fly func(context.Context) (*catalog.Image, error)) (fl *flight, shared bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.running[key]; ok {
		fl.waiting++
		return fl, true
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	fl = &flight{cancel: cancel, waiting: 1, done: make(chan struct{})}
	f.running[key] = fl
	go func() {
		fl.img, fl.err = fly(ctx)
		f.mu.Lock()
		f.end(key, fl, nil)
		f.mu.Unlock()
		close(fl.done)
	}()
	return fl, false
}

// leave takes a caller off a flight. The last one ends it, and a later caller starts another.
func (f *flights) leave(key string, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl.waiting--; fl.waiting == 0 {
		f.end(key, fl, errAbandoned)
	}
}

// end ends a flight. The caller holds mu.
func (f *flights) end(key string, fl *flight, cause error) {
	if f.running[key] == fl {
		delete(f.running, key)
	}
	fl.cancel(cause)
}
