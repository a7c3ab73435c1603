package podstats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/keyedlock"
)

// A query of a process that hangs and ignores the context ends after askTimeout. At most
// queriesPerProcess queries of one process run at once. Other processes are not delayed.
func TestAskOfOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := keyedlock.New(queriesPerProcess)
		release := make(chan struct{})
		var inside atomic.Int32
		hang := func(context.Context) (int, error) {
			inside.Add(1)
			<-release
			return 0, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*askTimeout)
		defer cancel()
		begin := time.Now()
		var asking sync.WaitGroup
		var asked atomic.Int32
		for range 10 {
			asking.Go(func() {
				_, err := ask(ctx, l, "sick", hang)
				if time.Since(begin) == askTimeout {
					asked.Add(1)
					if !errdefs.IsUnavailable(err) {
						t.Errorf("a query that ran returned %v, want Unavailable", err)
					}
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a query that only waited returned %v, want its own deadline", err)
				}
			})
		}
		asking.Go(func() {
			got, err := ask(ctx, l, "well", func(context.Context) (int, error) { return 7, nil })
			if got != 7 || err != nil || time.Since(begin) > 0 {
				t.Errorf("another process answers %d, %v after %s", got, err, time.Since(begin))
			}
		})
		asking.Wait()
		if took := time.Since(begin); took > 2*askTimeout {
			t.Errorf("the queries took %s", took)
		}
		if n := asked.Load(); n != queriesPerProcess {
			t.Errorf("%d queries ended after askTimeout, want %d", n, queriesPerProcess)
		}
		if n := inside.Load(); n != queriesPerProcess {
			t.Errorf("%d queries ran at once, want %d", n, queriesPerProcess)
		}
		close(release)
		synctest.Wait()
		if n := l.Used(); n != 0 {
			t.Errorf("%d processes are locked", n)
		}
	})
}

func TestAskOutlivesPanic(t *testing.T) {
	l := keyedlock.New(queriesPerProcess)
	test.Refused(t, test.Err(ask(t.Context(), l, "odd", func(context.Context) (int, error) { panic("what is this") })), errdefs.IsInternal)
	if got, err := ask(t.Context(), l, "odd", func(context.Context) (int, error) { return 7, nil }); got != 7 || err != nil {
		t.Errorf("the next query returned %d, %v", got, err)
	}
}

func TestAskWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := keyedlock.New(queriesPerProcess)
		var asking sync.WaitGroup
		for range 4 * queriesPerProcess {
			asking.Go(func() {
				test.Checkf(t, test.Err(ask(t.Context(), l, "slow", func(ctx context.Context) (int, error) {
					select {
					case <-time.After(askTimeout * 9 / 10):
						return 0, nil
					case <-ctx.Done():
						return 0, ctx.Err()
					}
				})), "a query that had to wait for others")
			})
		}
		asking.Wait()
	})
}

// collect processes every item once and keeps the order. Items that block do not wait for
// each other.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{0, 1, 2, 100} {
			items := make([]int, n)
			for i := range items {
				items[i] = i
			}
			var done atomic.Int64
			begin := time.Now()
			results := collect(items, func(i int) bool { return i%3 == 0 }, func(i int) int {
				if i%3 == 0 {
					time.Sleep(time.Second)
				}
				done.Add(1)
				return 2 * i
			})
			for i, got := range results {
				test.Equal(t, fmt.Sprintf("result %d of %d", i, n), got, 2*i)
			}
			if len(results) != n || done.Load() != int64(n) {
				t.Errorf("%d results of %d items, done %d times", len(results), n, done.Load())
			}
			if took := time.Since(begin); took > time.Second {
				t.Errorf("%d items took %s", n, took)
			}
		}
	})
}

func TestAnswerIn(t *testing.T) {
	for _, given := range []time.Duration{0, time.Second, time.Hour} {
		t.Run(fmt.Sprint(given), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, want := t.Context(), measureTimeout
				if given > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, given)
					defer cancel()
					want = min(want, given*9/10)
				}
				ctx, cancel := answerIn(ctx)
				defer cancel()
				deadline, _ := ctx.Deadline()
				test.Equal(t, "the remaining time", time.Until(deadline), want)
			})
		})
	}
}
