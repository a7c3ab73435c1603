package pod

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

func TestGateEndsThoseInsideAndWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		inside, leave, err := g.Enter(t.Context())
		test.Must(t, err)
		test.Checkf(t, g.Show(func() {}), "an open gate")
		go func() {
			<-inside.Done()
			if g.Ctx.Err() == nil {
				t.Error("the context ended although the gate is open")
			}
			time.Sleep(time.Minute)
			test.ErrorIs(t, g.Show(func() { t.Error("Show ran its function behind a shut gate") }), errShut, "Show behind a shut gate")
			leave()
		}()
		bounded, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		test.ErrorIs(t, g.Shut(bounded), context.DeadlineExceeded, "Shut while a call is inside")
		if _, _, err := g.Enter(t.Context()); !errors.Is(err, errShut) {
			t.Errorf("Enter of a shut gate: %v", err)
		}
		begin := time.Now()
		if err := g.Shut(t.Context()); err != nil || time.Since(begin) != time.Minute-time.Second {
			t.Errorf("Shut returned after %v, %v", time.Since(begin), err)
		}
		test.Checkf(t, g.Shut(t.Context()), "a third Shut")
	})
}

// After Shut has returned, Show runs no more functions.
func TestNothingIsShownAfterTheGateWasShut(t *testing.T) {
	for range 200 {
		var shown, last int
		g := newGate()
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for {
					_, leave, err := g.Enter(t.Context())
					if err != nil {
						return
					}
					_ = g.Show(func() { shown++ }) // fails once the gate is shut
					leave()
				}
			})
		}
		test.Must(t, g.Shut(t.Context()))
		last = shown // the race detector checks this too
		all.Wait()
		if shown != last {
			t.Fatalf("%d functions had run when the gate was shut, %d in the end", last, shown)
		}
	}
}
