package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// A transient failure keeps the profiles that a handler conforms to; a lasting one clears them.
func TestConformsAfterProbes(t *testing.T) {
	d := &handler.Definition{Name: "gvisor"}
	truth := &truth{verdicts: map[string]verdict{}}
	at := time.Now()
	for _, c := range []struct {
		err  error
		want int
	}{{nil, 1}, {errPassing, 1}, {errLasting, 0}, {errPassing, 0}, {nil, 1}} {
		at = at.Add(time.Second)
		r := result{definition: d, at: at, err: c.err, runtime: &probe.Runtime{}}
		if r.learned = c.err == nil; r.learned {
			r.table = capability.Table{Isolation: capability.UserSpaceKernel, Conforms: []string{"sandboxed/v1"}}
		}
		truth.note(r)
		if got := truth.verdicts[d.Digest()].table; len(got.Conforms) != c.want || got.Isolation != capability.UserSpaceKernel {
			t.Errorf("after %v: %+v", c.err, got)
		}
	}
}

var (
	errPassing = fmt.Errorf("fork: %w", syscall.EAGAIN)
	errLasting = errors.New("it is no runtime")
)

func TestVerdictAfterProbes(t *testing.T) {
	type one struct {
		at  int // seconds
		err error
	}
	for name, c := range map[string]struct {
		probes             []one
		failure, transient bool
		tries              int
	}{
		"good":                                       {[]one{{0, nil}}, false, false, 0},
		"bad":                                        {[]one{{0, errLasting}}, true, false, 1},
		"good, then bad":                             {[]one{{0, nil}, {1, errLasting}}, true, false, 1},
		"transient failure at first":                 {[]one{{0, errPassing}}, true, false, 1},
		"good, then a transient failure":             {[]one{{0, nil}, {9, errPassing}}, false, true, 1},
		"transient failures for a while":             {[]one{{0, nil}, {9, errPassing}, {10, errPassing}, {23, errPassing}}, false, true, 3},
		"transient failures for too long":            {[]one{{0, nil}, {9, errPassing}, {10, errPassing}, {24, errPassing}}, true, false, 3},
		"transient failure, then good":               {[]one{{0, nil}, {9, errPassing}, {24, nil}}, false, false, 0},
		"transient failure, good, transient failure": {[]one{{0, nil}, {9, errPassing}, {20, nil}, {30, errPassing}}, false, true, 1},
		"transient failure, then bad":                {[]one{{0, nil}, {9, errPassing}, {10, errLasting}}, true, false, 2},
		"bad, then a transient failure":              {[]one{{0, nil}, {9, errLasting}, {10, errPassing}}, true, false, 2},
		"transient failures for too long, and more":  {[]one{{0, nil}, {9, errPassing}, {24, errPassing}, {25, errPassing}}, true, false, 3},
		"transient failures for too long, then good": {[]one{{0, nil}, {9, errPassing}, {24, errPassing}, {25, nil}}, false, false, 0},
	} {
		start := time.Now()
		var v verdict
		saw := &probe.Runtime{Version: "1"}
		for i, p := range c.probes {
			r := result{at: start.Add(time.Duration(p.at) * time.Second), err: p.err}
			if p.err == nil {
				r.runtime = saw
			}
			v = v.after(r, i > 0)
		}
		if (v.failure != "") != c.failure || (v.transient != "") != c.transient || v.tries != c.tries || (v.runtime == nil) != (c.probes[0].err != nil) {
			t.Errorf("%s: got %+v", name, v)
		}
	}
}

func TestWhenToLookAgain(t *testing.T) {
	for _, c := range []struct {
		tries    int
		interval time.Duration
		after    time.Duration // 0 is never
	}{
		{0, time.Minute, 0},
		{1, time.Minute, time.Second},
		{2, time.Minute, 2 * time.Second},
		{3, time.Minute, 4 * time.Second},
		{4, time.Minute, 8 * time.Second},
		{5, time.Minute, 8 * time.Second},
		{1000, time.Minute, 8 * time.Second},
		{1000, 3 * time.Second, 3 * time.Second},
		{1, 3 * time.Second, time.Second},
		{4, 0, 8 * time.Second},
		{1000, 0, 8 * time.Second},
	} {
		now := time.Now()
		due := func(passed time.Duration) bool {
			return verdict{tries: c.tries, at: now}.due(now.Add(passed), c.interval)
		}
		if c.after == 0 && due(time.Hour) || c.after > 0 && (due(c.after-1) || !due(c.after)) {
			t.Errorf("verdict.due is wrong for %+v", c)
		}
	}
}

// timed runs a test with a fake clock, on a bed with runc and crun.
func timed(t *testing.T, run func(t *testing.T, b *bed)) {
	synctest.Test(t, func(t *testing.T) {
		start := conf("runc", "/r", "crun", "/c")
		start.Handlers.ProbeInterval = 30 * time.Second
		b := &bed{t: t, dir: t.TempDir(), failures: map[string]error{}, selfCheck: map[string]error{}, hanging: map[string]chan struct{}{}}
		b.open(start)
		run(t, b)
		b.close()
	})
}

// pass advances the clock and waits until all goroutines are blocked.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestAHandlerInDoubtStaysReady(t *testing.T) {
	timed(t, func(t *testing.T, b *bed) {
		b.set(func() { b.failures["/r"] = errPassing })
		pass(32 * time.Second)
		h, err := b.m.Handler("runc")
		if err != nil || h.State.Phase != handler.Ready || h.ProbeError == "" {
			t.Fatalf("got %+v, %v", h, err)
		}
		b.set(func() { delete(b.failures, "/r"); b.checks = nil })
		pass(9 * time.Second)
		if h, err = b.m.Handler("runc"); err != nil || h.State.Phase != handler.Ready || h.ProbeError != "" {
			t.Errorf("got %+v, %v", h, err)
		}
		if again := (check{"/r", true}); !slices.Contains(b.checks, again) {
			t.Errorf("runc was not queried again: %v", b.checks)
		}
		b.set(func() { b.failures["/r"] = errPassing })
		pass(30 * time.Second)
		pass(transientFor + longestRetry)
		if b.phase("runc") != handler.NotReady || b.phase("crun") != handler.Ready {
			t.Errorf("runc is %s, crun is %s", b.phase("runc"), b.phase("crun"))
		}
	})
}

// A handler is ready soon after its failure is gone, not only after the probe interval.
func TestANotReadyHandlerComesBackSoon(t *testing.T) {
	timed(t, func(t *testing.T, b *bed) {
		for _, after := range []time.Duration{0, time.Hour} {
			b.set(func() { b.failures["/r"] = errLasting })
			pass(31 * time.Second)
			if b.phase("runc") != handler.NotReady {
				t.Fatalf("runc is %s", b.phase("runc"))
			}
			pass(after)
			b.set(func() { delete(b.failures, "/r") })
			pass(longestRetry + lookInterval)
			test.Equal(t, "runc", b.phase("runc"), handler.Ready)
		}
	})
}

// A failed handler is not probed twice when its retry and the probe of all handlers are due.
func TestAFailedHandlerIsLookedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := conf("runc", "/r")
		start.Handlers.ProbeInterval = time.Second
		b := &bed{t: t, dir: t.TempDir(), failures: map[string]error{"/r": errLasting}}
		b.open(start)
		pass(20*time.Second + lookInterval/2)
		b.close()
		if n := len(b.checks); n < 20 || n > 22 {
			t.Errorf("runc was probed %d times in 20 seconds", n)
		}
	})
}

// A runtime that hangs has only one probe at a time, and does not delay probes of others.
func TestRuntimesThatHangDelayNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		b := &bed{t: t, dir: t.TempDir(), hanging: map[string]chan struct{}{}}
		handlers := []string{"runc", "/r"}
		for i := range 3 * probesAtOnce {
			path := fmt.Sprint("/h", i)
			b.hanging[path] = hang
			handlers = append(handlers, fmt.Sprint("h", i), path)
		}
		handlers = append(handlers, "zz", "/z")
		start := conf(handlers...)
		start.Handlers.ProbeInterval, start.Handlers.AskInterval = 5*time.Second, 10*time.Second
		b.open(start)
		for _, name := range []string{"runc", "zz"} {
			test.Equal(t, name, b.phase(name), handler.Ready)
		}
		b.set(func() { b.checks = nil })
		pass(31 * time.Second)
		anew := 0
		for _, c := range b.checks {
			if c.path != "/r" && c.path != "/z" {
				t.Fatalf("%s is probed although its last probe has not finished", c.path)
			}
			if c.anew {
				anew++
			}
		}
		if len(b.checks) < 10 || anew < 4 || anew == len(b.checks) {
			t.Errorf("healthy handlers were probed %d times, %d of them with a query", len(b.checks), anew)
		}
		close(hang)
		synctest.Wait()
		test.Equal(t, "h0", b.phase("h0"), handler.Ready)
		b.close()
	})
}

// A probe may finish after one that began later; its older result is ignored.
func TestAnOlderProbeThatIsToldLateSaysNothingNew(t *testing.T) {
	d := &handler.Definition{Name: "twice"}
	begin := time.Now()
	for name, late := range map[string]error{"older success": nil, "older failure": errLasting} {
		truth := &truth{verdicts: map[string]verdict{}}
		later := errLasting
		if late != nil {
			later = nil
		}
		truth.note(result{definition: d, at: begin.Add(time.Second), err: later, runtime: &probe.Runtime{}})
		truth.note(result{definition: d, at: begin, err: late, runtime: &probe.Runtime{}})
		if v := truth.verdicts[d.Digest()]; (v.failure != "") != (later != nil) {
			t.Errorf("%s: got %+v", name, v)
		}
		truth.note(result{definition: d, at: begin.Add(2 * time.Second), err: late, runtime: &probe.Runtime{}})
		if v := truth.verdicts[d.Digest()]; (v.failure != "") != (late != nil) {
			t.Errorf("%s, then a newer result of the same kind: got %+v", name, v)
		}
	}
}

// An operator's probe waits longer for its result than a reload does, and returns
// it.
func TestAnOperatorsProbeWaitsToItsEnd(t *testing.T) {
	timed(t, func(t *testing.T, b *bed) {
		hang := make(chan struct{})
		b.set(func() { b.hanging["/r"], b.failures["/r"] = hang, errors.New("no machine boots") })
		go func() {
			time.Sleep(20 * probeWait)
			close(hang)
		}()
		h, err := b.m.Probe(t.Context(), "runc", probe.WithSelfCheck)
		if err != nil || h.State.Phase != handler.NotReady || h.ProbeError != "no machine boots" {
			t.Errorf("got %+v, %v", h, err)
		}
		hang = make(chan struct{})
		b.set(func() { b.hanging["/c"] = hang })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if h, err := b.m.Probe(ctx, "crun", probe.Ask); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller whose deadline passed got %+v, %v", h, err)
		}
		close(hang)
		synctest.Wait()
		h, err = b.m.Handler("crun")
		if err != nil || h.State.Phase != handler.Ready || time.Since(h.Probed) > time.Second {
			t.Errorf("the late result is lost: %+v, %v", h, err)
		}
	})
}
