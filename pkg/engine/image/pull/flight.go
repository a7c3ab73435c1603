package pull

import (
	"context"
	"errors"
	"sync"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/step"
)

// errAbandoned is the cause of a flight's end when nobody waits for it any more.
var errAbandoned = errors.New("all callers have gone")

// ErrClosing is the cause of a flight's end when the store is closed.
var ErrClosing = errors.New("the image store is closing")

// flights lets callers who want the same thing share one attempt. A caller who
// leaves does not end it for the others; the last one does, which singleflight has no way for.
type flights struct {
	mu      sync.Mutex
	running map[string]*flight
	closed  bool
	wg      sync.WaitGroup
	// cancels ends every flight, also those that lost their callers.
	cancels map[*flight]context.CancelCauseFunc
}

type flight struct {
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
func (f *flights) do(ctx context.Context, key string, fly func(context.Context, context.CancelCauseFunc) (*catalog.Image, error)) (*catalog.Image, error) {
	fl, shared, err := f.join(ctx, key, fly)
	if err != nil {
		return nil, err
	}
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
func (f *flights) join(ctx context.Context, key string, fly func(context.Context, context.CancelCauseFunc) (*catalog.Image, error)) (fl *flight, shared bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, false, ErrClosing
	}
	if fl, ok := f.running[key]; ok {
		fl.waiting++
		return fl, true, nil
	}
	fl = &flight{waiting: 1, done: make(chan struct{})}
	fctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f.running[key], f.cancels[fl] = fl, cancel
	f.wg.Go(func() {
		defer f.land(key, fl)
		defer disk.Caught(fctx, &fl.err)
		fl.img, fl.err = fly(fctx, cancel)
	})
	return fl, false, nil
}

// leave takes a caller off a flight. A flight that nobody waits for is ended,
// and a later caller starts another.
func (f *flights) leave(key string, fl *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl.waiting--; fl.waiting > 0 {
		return
	}
	if f.running[key] == fl {
		delete(f.running, key)
	}
	if cancel, ok := f.cancels[fl]; ok {
		cancel(errAbandoned)
	}
}

func (f *flights) land(key string, fl *flight) {
	f.mu.Lock()
	if f.running[key] == fl {
		delete(f.running, key)
	}
	f.cancels[fl](nil)
	delete(f.cancels, fl)
	f.mu.Unlock()
	close(fl.done)
}

// close ends all flights and waits for them.
func (f *flights) close() {
	f.mu.Lock()
	f.closed = true
	for _, cancel := range f.cancels {
		cancel(ErrClosing)
	}
	f.mu.Unlock()
	f.wg.Wait()
}
