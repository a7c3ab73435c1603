package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

func TestStartLog(t *testing.T) {
	type start struct {
		at    int // seconds
		err   string
		depth probe.Depth // of the probe after a failed start
	}
	for name, c := range map[string]struct {
		starts []start
		want   Starts
	}{
		"none failed":                  {[]start{{0, "", 0}, {1, "", 0}}, Starts{Recent: 2}},
		"one failed":                   {[]start{{0, "", 0}, {1, "no", probe.Ask}}, Starts{Recent: 2, Failed: 1, InARow: 1, Error: "no"}},
		"two failed":                   {[]start{{0, "no", probe.Ask}, {1, "nor", probe.RunPod}}, Starts{Recent: 2, Failed: 2, InARow: 2, Error: "nor"}},
		"one succeeded between":        {[]start{{0, "no", probe.Ask}, {1, "", 0}, {2, "nor", probe.Ask}}, Starts{Recent: 3, Failed: 2, InARow: 1, Error: "nor"}},
		"all failed":                   {[]start{{0, "a", probe.Ask}, {0, "b", probe.RunPod}, {4, "c", probe.Ask}, {5, "d", probe.RunPod}, {14, "e", probe.Ask}, {15, "f", probe.RunPod}}, Starts{Recent: 6, Failed: 6, InARow: 6, Error: "f"}},
		"failed again after a success": {[]start{{0, "a", probe.Ask}, {0, "b", probe.RunPod}, {1, "", 0}, {2, "c", probe.Ask}, {2, "d", probe.RunPod}}, Starts{Recent: 5, Failed: 4, InARow: 2, Error: "d"}},
	} {
		begin := time.Now()
		var l startLog
		for _, s := range c.starts {
			now := begin.Add(time.Duration(s.at) * time.Second)
			l.add(s.err, now)
			if s.err == "" {
				continue
			}
			test.Equal(t, fmt.Sprintf("%s, second %d: depth of the probe", name, s.at), l.depth(now), s.depth)
			c.want.At = now
		}
		if got := l.report(begin.Add(time.Minute)); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
	var l startLog
	for range 10 * startsKept {
		l.add("no", time.Now())
	}
	if got := l.report(time.Now()); got.Recent != startsKept || got.Failed != startsKept || got.InARow != 10*startsKept {
		t.Errorf("after many failures: %+v", got)
	}
	if got := l.report(time.Now().Add(2 * rowEnds)); got.InARow != 0 || got.Failed != startsKept {
		t.Errorf("long after many failures: %+v", got)
	}
}

// A handler whose probes succeed is not ready after its pods and a self-check pod failed,
// and ready again after a self-check pod succeeded.
func TestStartsThatFailDecide(t *testing.T) {
	timed(t, func(t *testing.T, b *bed) {
		d := definitions(b.m.snapshot().config)["runc"]
		a := handler.Attempt{Definition: d, Pod: "u"}
		fails := errors.New("run exited with status 1")
		b.set(func() { b.selfCheck["/r"] = errors.New("the self-check pod failed at its start") })
		b.m.NotStarted("runc", a, fails)
		synctest.Wait()
		if b.phase("runc") != handler.Ready {
			t.Error("runc is not ready after one failed start")
		}
		b.m.NotStarted("runc", a, fails)
		synctest.Wait()
		h, err := b.m.Handler("runc")
		if err != nil || h.State.Phase != handler.NotReady || !strings.Contains(h.State.Reason, "self-check pod failed") {
			t.Fatalf("after two failed starts: %+v, %v", h.State, err)
		}
		if h.Starts.InARow != 2 || h.Starts.Error != fails.Error() || time.Since(h.State.Since) > time.Second {
			t.Errorf("the starts are %+v, the state is of %v", h.Starts, h.State.Since)
		}
		b.set(func() { delete(b.selfCheck, "/r") })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if b.phase("runc") != handler.Ready {
			t.Error("runc does not become ready")
		}
	})
}

// A handler that failed its self-check pod stays not ready until one passes, even if its limits
// change. Further failures change neither the time of its state nor the history.
func TestHandlerThatFailedIsMended(t *testing.T) {
	timed(t, func(t *testing.T, b *bed) {
		a := handler.Attempt{Definition: definitions(b.m.snapshot().config)["runc"], Pod: "u"}
		b.set(func() { b.selfCheck["/r"] = errors.New("record 1 is lost") })
		for range FailuresInARow {
			b.m.NotStarted("runc", a, errors.New("no"))
		}
		synctest.Wait()
		states := func() (n int) {
			changes := test.Value(b.m.Changes("runc"))(t)
			for _, c := range changes {
				if c.What == "state" {
					n++
				}
			}
			return n
		}
		state := func() handler.State {
			e, _ := b.last().entry("runc")
			return e.State
		}
		since, lines := state().Since, states()
		b.set(func() { b.selfCheck["/r"] = errors.New("record 2 is lost") })
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if now := state(); now.Phase != handler.NotReady || now.Since != since || !strings.Contains(now.Reason, "record 2") || states() != lines {
			t.Errorf("the state is %+v, want since %v; the history had %d lines, now %d", now, since, lines, states())
		}
		changed := conf("runc", "/r", "crun", "/c")
		changed.Handlers.ProbeInterval, changed.Runtimes[0].Limits.MaxPods = 30*time.Second, 5
		b.must(b.reload(changed))
		if b.phase("runc") != handler.NotReady {
			t.Error("a change of limits makes runc ready")
		}
		b.set(func() { delete(b.selfCheck, "/r") })
		time.Sleep(20 * time.Second)
		synctest.Wait()
		h, err := b.m.Handler("runc")
		if err != nil || h.State.Phase != handler.Ready || h.Starts.InARow != 0 || h.Starts.Failed != FailuresInARow {
			t.Errorf("after a self-check pod passed: %+v, %+v, %v", h.State, h.Starts, err)
		}
	})
}

// A self-check pod that hangs counts as failed until it has finished.
func TestSelfCheckPodThatHangs(t *testing.T) {
	timed(t, func(t *testing.T, b *bed) {
		d := definitions(b.m.snapshot().config)["runc"]
		a := handler.Attempt{Definition: d, Pod: "u"}
		hang := make(chan struct{})
		b.set(func() { b.hanging["/r"] = hang })
		b.m.NotStarted("runc", a, errors.New("timed out"))
		b.m.NotStarted("runc", a, errors.New("timed out"))
		time.Sleep(selfCheckPatience + time.Second)
		synctest.Wait()
		h, err := b.m.Handler("runc")
		if err != nil || h.State.Phase != handler.NotReady || !strings.Contains(h.State.Reason, "has not finished") || !strings.Contains(h.State.Reason, "timed out") {
			t.Errorf("%+v, %v", h.State, err)
		}
		b.set(func() { delete(b.hanging, "/r") })
		close(hang)
		synctest.Wait()
		if b.phase("runc") != handler.Ready {
			t.Error("runc does not become ready")
		}
	})
}

// Pods of a Definition that is no longer configured do not affect the current one.
func TestStartsOfAnotherDefinition(t *testing.T) {
	timed(t, func(t *testing.T, b *bed) {
		old := *definitions(b.m.snapshot().config)["runc"]
		old.Path = "/gone"
		b.set(func() { b.selfCheck["/r"] = errors.New("it would fail"); b.checks = nil })
		for range 3 {
			b.m.NotStarted("runc", handler.Attempt{Definition: &old}, errors.New("no"))
		}
		synctest.Wait()
		if b.phase("runc") != handler.Ready {
			t.Error("runc is not ready")
		}
	})
}

// Pods on a candidate count for the rollout, and for the handler only after a promotion.
func TestStartsOfACandidate(t *testing.T) {
	b := newBed(t, trying(10))
	main := definitions(b.m.snapshot().config)["runc"]
	own, candidate := handler.Attempt{Definition: main, Pod: "u"}, handler.Attempt{Definition: main.WithCandidate(), Pod: "v"}
	b.m.NotStarted("runc", candidate, errors.New("no"))
	if got := b.m.Starts("runc"); got.Recent != 0 {
		t.Errorf("a pod on the candidate counts: %+v", got)
	}
	b.m.NotStarted("runc", own, errors.New("nor"))
	b.m.Started("runc", candidate)
	if got := b.m.Starts("runc"); got.InARow != 1 || got.Recent != 1 {
		t.Errorf("a pod on the candidate resets the failures in a row: %+v", got)
	}
	test.Must(t, b.m.Promote(t.Context(), "runc"))
	b.m.NotStarted("runc", candidate, errors.New("no"))
	if got := b.m.Starts("runc"); got.InARow != 2 {
		t.Errorf("a pod on the promoted candidate does not count: %+v", got)
	}
}
