package podstats

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/keyedlock"
)

// Bounds of calls that measure everything. A process that runs tasks may hang;
// that must cost what it alone knows, and no more.
const (
	// measureTimeout bounds a whole list, if the caller's deadline is later.
	measureTimeout = 10 * time.Second
	// askTimeout bounds one question about one container.
	askTimeout = 3 * time.Second
	// askedAtOnce is how many questions one process is asked at the same time:
	// gVisor answers each by running a program.
	askedAtOnce = 4
)

// answerIn leaves a tenth of the caller's time for the answer.
func answerIn(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := measureTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)*9/10)
	}
	return context.WithTimeout(ctx, limit)
}

// collect returns f of all items, in their order. Those for which a process must
// be asked wait beside each other; the others only read files, and take turns on
// the CPUs.
func collect[T, R any](items []T, asks func(T) bool, f func(T) R) []R {
	results := make([]R, len(items))
	var all sync.WaitGroup
	var files []int
	for i, item := range items {
		if asks(item) {
			all.Go(func() { results[i] = f(item) })
		} else {
			files = append(files, i)
		}
	}
	var taken atomic.Int64
	work := func() {
		for next := taken.Add(1); next <= int64(len(files)); next = taken.Add(1) {
			i := files[next-1]
			results[i] = f(items[i])
		}
	}
	for range min(runtime.GOMAXPROCS(0), len(files)) - 1 {
		all.Go(work)
	}
	work()
	all.Wait()
	return results
}

// ask puts a question to the process with that key. It waits for its turn as long
// as ctx lasts, and then for the answer no longer than askTimeout, even if the
// question does not heed its context. That keeps its place until it does end: a
// process that hangs is not asked more and more.
func ask[R any](ctx context.Context, l *keyedlock.Locks, key string, question func(context.Context) (R, error)) (R, error) {
	if l.Lock(ctx, key) != nil {
		return *new(R), fmt.Errorf("its runtime is busy with other queries: %w", context.Cause(ctx))
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	type answer struct {
		value R
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		defer l.Unlock(key)
		var a answer
		defer func() {
			// What processes of others answer is read here.
			if p := recover(); p != nil {
				log.G(ctx).WithFields(log.Fields{"asked": key, "panic": fmt.Sprint(p), "stack": string(debug.Stack())}).
					Error("Statistics query panicked; please report this with the stack")
				a.err = fmt.Errorf("statistics query panicked, see the log for the stack: %w", errdefs.ErrInternal)
			}
			answered <- a
		}()
		a.value, a.err = question(ctx)
	}()
	defer cancel()
	select {
	case a := <-answered:
		if a.err == nil || ctx.Err() == nil {
			return a.value, a.err
		}
	case <-ctx.Done():
	}
	if caller.Err() != nil {
		return *new(R), context.Cause(caller)
	}
	return *new(R), fmt.Errorf("its runtime did not respond within %s: %w", askTimeout, errdefs.ErrUnavailable)
}
