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

// Limits of calls that measure everything. A process that runs tasks may hang; then only the values
// that it alone provides are missing.
const (
	// measureTimeout limits a whole list, unless the caller's deadline is earlier.
	measureTimeout = 10 * time.Second
	// askTimeout limits one query about one container.
	askTimeout = 3 * time.Second
	// queriesPerProcess is the number of concurrent queries to one process: gVisor runs a program
	// for each.
	queriesPerProcess = 4
)

// answerIn reserves a tenth of the caller's time for the response.
func answerIn(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := measureTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)*9/10)
	}
	return context.WithTimeout(ctx, limit)
}

// collect returns f of all items, in their order. Items that query a process run in parallel; the
// others only read files, and run on at most GOMAXPROCS goroutines.
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

// ask sends a query to the process with that key. It waits for a slot until ctx ends, and then for
// the answer up to askTimeout, even if the query ignores its context. The query keeps its slot
// until it ends, so that queries to a process that hangs do not pile up.
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
			// The query parses the answers of other processes.
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
