package keyedlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(2)
		lock := func(name string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return l.Lock(ctx, name)
		}
		test.Must(t, errors.Join(lock("a"), lock("a"), lock("b")))
		test.ErrorIs(t, lock("a"), context.DeadlineExceeded, "a third holder")
		waited := make(chan error)
		go func() { waited <- lock("a") }()
		synctest.Wait()
		l.Unlock("a")
		test.Checkf(t, <-waited, "a lock after one holder has unlocked")
		if n := l.Used(); n != 2 {
			t.Errorf("%d keys are used, want 2", n)
		}
		l.Unlock("a")
		l.Unlock("a")
		l.Unlock("b")
		if n := l.Used(); n != 0 {
			t.Errorf("%d keys are used after the last Unlock, want 0", n)
		}
	})
}

func TestMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMutex()
		test.Must(t, m.Lock(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		test.ErrorIs(t, m.Lock(ctx), context.DeadlineExceeded, "a second holder")
		if m.TryLock() {
			t.Error("a lock that is held was taken")
		}
		m.Unlock()
		if !m.TryLock() {
			t.Error("a free lock was not taken")
		}
	})
}
