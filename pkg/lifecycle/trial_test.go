package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

func trying(percent int) *config.Config {
	c := &config.Config{}
	c.DefaultRuntime = "runc"
	c.Runtimes = []*handler.Definition{{
		Name: "runc", Type: handler.OCI, Path: "/old",
		Next: &handler.Next{Path: "/new", Percent: percent, AbortAfter: 3, Threshold: 20},
	}}
	return c
}

// onTrial is what a share of new pods runs, and main what the others do.
func (b *bed) onTrial(t *testing.T) (main, tried string, trial *Trial) {
	t.Helper()
	e, _ := b.last().entry("runc")
	if e.Next != nil {
		tried = e.Next.Path
	}
	h, err := b.m.Handler("runc")
	if err != nil {
		t.Fatal(err)
	}
	return e.Definition.Path, tried, h.Trial
}

func (b *bed) wantTrial(t *testing.T, main, tried string, state TrialState, reason string) {
	t.Helper()
	m, n, trial := b.onTrial(t)
	if m != main || n != tried || trial == nil || trial.State != state || !strings.Contains(trial.Reason, reason) {
		t.Errorf("pods run %q, and a share %q; the trial is %+v; want %q, %q, %s (%s)", m, n, trial, main, tried, state, reason)
	}
}

// pod is one that tries the next binary, in the configuration of trying(10) or of
// any other that differs in Next only.
func pod(path, sha256, uid string) handler.Attempt {
	d := trying(10).Runtimes[0]
	d.Next.Path = path
	return handler.Attempt{Definition: d.WithNext(), SHA256: sha256, Pod: uid}
}

// usual is one that runs the handler's own.
func usual(uid string) handler.Attempt {
	return handler.Attempt{Definition: trying(10).Runtimes[0], Pod: uid}
}

var errBroke = errors.New("it broke")

func (b *bed) awaitEnd() {
	b.t.Helper()
	b.wait("the end of the trial", func() bool { _, tried, _ := b.onTrial(b.t); return tried == "" })
}

func TestTrialEndsByItself(t *testing.T) {
	b := newBed(t, trying(10))
	b.wantTrial(t, "/old", "/new", TrialRunning, "")
	for i := range 8 {
		b.m.Began("runc", pod("/new", "", fmt.Sprint("good", i)))
	}
	for range 5 { // one pod is one failure, however often the kubelet tries it
		b.m.Failed("runc", pod("/new", "", "bad0"), errBroke)
	}
	b.m.Failed("runc", pod("/new", "", "bad1"), errBroke)
	b.m.Failed("runc", pod("/elsewhere", "", "bad2"), errors.New("of another trial"))
	b.wantTrial(t, "/old", "/new", TrialRunning, "")
	b.m.Failed("runc", pod("/new", "", "bad3"), errBroke)
	b.awaitEnd()
	b.wantTrial(t, "/old", "", TrialAborted, "3 of 11 pods on the candidate failed to start within 10m0s; last error: it broke")

	b.close()
	b.open(trying(10)) // a restart
	b.wantTrial(t, "/old", "", TrialAborted, "3 of 11 pods")
	b.must(b.reload(trying(10)))
	b.wantTrial(t, "/old", "", TrialAborted, "3 of 11 pods")
	if _, _, trial := b.onTrial(t); !strings.Contains(trial.Fault(), "3 of 11 pods") || trial.shown() != trialFailed {
		t.Errorf("it is told as %q, with the fault %q", trial.shown(), trial.Fault())
	}
	b.must(b.reload(trying(20))) // another trial
	b.wantTrial(t, "/old", "/new", TrialRunning, "")
}

// A trial is of a program, not of a path: the next program there is judged anew,
// and so is the same one that was taken out of the configuration and put in again.
func TestEachTrialIsJudged(t *testing.T) {
	b := newBed(t, trying(10))
	sum := "first"
	none := trying(10)
	none.Runtimes[0].Next = nil
	became := func(s string) func() {
		return func() {
			b.set(func() { b.sums["/new"] = s })
			if _, err := b.m.Probe(t.Context(), "runc", probe.Ask); err != nil {
				t.Fatal(err)
			}
			sum = s
		}
	}
	fail := func() {
		for i := range 3 {
			b.m.Failed("runc", pod("/new", sum, fmt.Sprint(i)), errBroke)
		}
		b.awaitEnd()
		b.wantTrial(t, "/old", "", TrialAborted, "3 of 3")
	}
	became("first")()
	for _, next := range []struct {
		what  string
		begin func()
	}{
		{"the first", func() {}},
		{"another program", became("second")},
		{"the same, in the configuration again", func() { b.must(b.reload(none)); b.must(b.reload(trying(10))) }},
		{"another program, after a restart", func() { b.close(); b.set(func() { b.sums["/new"] = "third" }); sum = "third"; b.open(trying(10)) }},
		{"the first again", became("first")},
		{"after one that was promoted", func() {
			if err := b.m.Promote(t.Context(), "runc"); err != nil {
				t.Fatal(err)
			}
			b.wantTrial(t, "/new", "", TrialPromoted, "")
			became("fourth")()
		}},
		{"after one that an operator aborted", func() {
			if err := b.m.Abort(t.Context(), "runc", ""); err != nil {
				t.Fatal(err)
			}
			became("fifth")()
		}},
	} {
		next.begin()
		b.wantTrial(t, "/old", "/new", TrialRunning, "")
		for i := range 9 { // pods of the last trial say nothing about this one
			b.m.Failed("runc", pod("/new", "before "+sum, fmt.Sprint(i)), errBroke)
		}
		if b.m.trials.running["runc"] != nil && len(b.m.trials.running["runc"].next.failed) != 0 {
			t.Errorf("%s: pods of another trial count", next.what)
		}
		fail()
		if t.Failed() {
			t.Fatal(next.what)
		}
	}
	b.must(b.reload(none))
	if text, err := os.ReadFile(filepath.Join(b.dir, "root", "trials.json")); err != nil || strings.Contains(string(text), "aborted") {
		t.Errorf("the ruling is kept although the trial is over: %s, %v", text, err)
	}
}

// A ruling holds while the binary is not known yet, and when it comes back the same.
func TestRulingHoldsForTheSameProgram(t *testing.T) {
	b := newBed(t, trying(10))
	b.set(func() { b.sums["/new"] = "first" })
	look := func() {
		if _, err := b.m.Probe(t.Context(), "runc", probe.Ask); err != nil {
			t.Fatal(err)
		}
	}
	look()
	if err := b.m.Abort(t.Context(), "runc", "slow"); err != nil {
		t.Fatal(err)
	}
	b.close()
	b.set(func() { b.failures["/new"] = errors.New("gone") })
	b.open(trying(10))
	b.wantTrial(t, "/old", "", TrialAborted, "slow")
	b.set(func() { delete(b.failures, "/new") })
	look()
	b.wantTrial(t, "/old", "", TrialAborted, "slow")
	broken := trying(10)
	broken.Runtimes[0].Name, broken.DefaultRuntime = "other", "other"
	broken.Broken = []config.Broken{{Name: "runc", Reason: "its file cannot be read"}}
	b.close()
	b.open(broken)
	b.close()
	b.open(trying(10))
	b.wantTrial(t, "/old", "", TrialAborted, "slow")
}

func TestShareOfFailures(t *testing.T) {
	n := &handler.Next{AbortAfter: 3, Threshold: 20}
	for _, c := range []struct {
		begun, failed, usual, bad int
		end                       bool
	}{
		{3, 2, 0, 0, false},
		{3, 3, 0, 0, true},
		{100, 19, 0, 0, false},
		{100, 20, 0, 0, true},
		{100, 20, 100, 1, false}, // 19 more than usual
		{100, 21, 100, 1, true},
		{10, 10, 10, 10, false}, // nothing can start on this node
		{10, 10, 10, 9, false},
		{10, 10, 10, 8, true},
		{3, 3, 2, 2, true}, // two do not tell what is usual
		{3, 3, 3, 3, false},
	} {
		one := &tries{next: newSample(), stable: newSample()}
		fill := func(s sample, begun, failed int) {
			for i := range begun {
				s.add(fmt.Sprint(i), i < failed, time.Now())
			}
		}
		fill(one.next, c.begun, c.failed)
		fill(one.stable, c.usual, c.bad)
		if one.fails(n) != c.end {
			t.Errorf("%+v: got %v", c, !c.end)
		}
	}
}

// What fails on the whole node does not end a trial; pods of long ago do not count.
func TestFailuresBesideOthers(t *testing.T) {
	b := newBed(t, trying(10))
	for i := range 5 {
		b.m.Began("runc", usual(fmt.Sprint("usual", i)))
		b.m.Failed("runc", usual(fmt.Sprint("usual", i)), errBroke)
	}
	for i := range 9 {
		b.m.Failed("runc", pod("/new", "", fmt.Sprint(i)), errBroke)
	}
	one := b.m.trials.running["runc"]
	if one.over {
		t.Error("the trial ends although nothing can start")
	}
	b.m.trials.mu.Lock()
	for _, pods := range []map[string]time.Time{one.stable.begun, one.stable.failed, one.next.begun, one.next.failed} {
		for pod := range pods {
			pods[pod] = time.Now().Add(-2 * trialWindow)
		}
	}
	b.m.trials.mu.Unlock()
	for i := range 2 {
		b.m.Failed("runc", pod("/new", "", fmt.Sprint(i)), errBroke)
	}
	if one.over || len(one.next.failed) != 2 || len(one.stable.begun) != 0 {
		t.Errorf("pods of long ago count: %+v", one)
	}
	b.m.Failed("runc", pod("/new", "", "2"), errBroke)
	b.awaitEnd()
}

func TestPromoteAndAbort(t *testing.T) {
	b := newBed(t, trying(10))
	ctx := t.Context()
	if err := b.m.Promote(ctx, "runc"); err != nil {
		t.Fatal(err)
	}
	b.wantTrial(t, "/new", "", TrialPromoted, "an operator")
	for i := range 9 { // what was promoted is not on trial any more
		b.m.Failed("runc", pod("/new", "", fmt.Sprint(i)), errBroke)
	}
	b.close()
	b.open(trying(10))
	b.wantTrial(t, "/new", "", TrialPromoted, "an operator")
	if err := b.m.Abort(ctx, "runc", "too slow"); err != nil {
		t.Fatal(err)
	}
	b.wantTrial(t, "/old", "", TrialAborted, "too slow")

	// The files have the last word.
	if err := b.m.Promote(ctx, "runc"); err != nil {
		t.Fatal(err)
	}
	settled := trying(10)
	settled.Runtimes[0].Path, settled.Runtimes[0].Next = "/new", nil
	b.must(b.reload(settled))
	if main, tried, trial := b.onTrial(t); main != "/new" || tried != "" || trial != nil {
		t.Errorf("pods run %q and %q, the trial is %+v", main, tried, trial)
	}
	for name, want := range map[string]error{"runc": errdefs.ErrFailedPrecondition, "nobody": errdefs.ErrNotFound} {
		if err := b.m.Promote(ctx, name); !errors.Is(err, want) {
			t.Errorf("promoting the binary that %s does not try: %v", name, err)
		}
		if err := b.m.Abort(ctx, name, ""); !errors.Is(err, want) {
			t.Errorf("aborting the trial that %s has not: %v", name, err)
		}
	}
}

// An aborted binary in whose place there is one that cannot be probed is not ready,
// as that is what to mend. The ruling waits for the program that it is on.
func TestAbortedBinaryReplacedByOneThatCannotBeProbed(t *testing.T) {
	b := newBed(t, trying(10))
	look := func(sum string, failure error) {
		b.set(func() { b.sums["/new"], b.failures["/new"] = sum, failure })
		if _, err := b.m.Probe(t.Context(), "runc", probe.Ask); err != nil {
			t.Fatal(err)
		}
	}
	look("first", nil)
	if err := b.m.Abort(t.Context(), "runc", "slow"); err != nil {
		t.Fatal(err)
	}
	look("first", errors.New("it says nothing"))
	b.wantTrial(t, "/old", "", TrialAborted, "slow")
	look("", errors.New("/new does not exist"))
	b.wantTrial(t, "/old", "", TrialAborted, "slow")
	look("false", errors.New("it is no runtime"))
	b.wantTrial(t, "/old", "", TrialNotReady, "it is no runtime")
	b.close()
	b.open(trying(10)) // a restart
	b.wantTrial(t, "/old", "", TrialNotReady, "it is no runtime")
	look("first", nil)
	b.wantTrial(t, "/old", "", TrialAborted, "slow")
	look("false", errors.New("it is no runtime"))
	look("second", nil)
	b.wantTrial(t, "/old", "/new", TrialRunning, "")
}

func TestNextBinaryThatIsNotThere(t *testing.T) {
	b := newBed(t, trying(100))
	b.set(func() { b.failures["/new"] = errors.New("/new does not exist") })
	if _, err := b.m.Probe(t.Context(), "runc", probe.Ask); err != nil {
		t.Fatal(err)
	}
	b.wantTrial(t, "/old", "", TrialNotReady, "/new does not exist")
	if b.phase("runc") != handler.Ready {
		t.Error("the handler is not ready for want of a binary that it only tries")
	}
	if err := b.m.Promote(t.Context(), "runc"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a binary that is not there was promoted: %v", err)
	}
}

// What cannot be kept is not in force, and a file that cannot be read is told.
func TestRulingsThatCannotBeKept(t *testing.T) {
	b := newBed(t, trying(10))
	b.set(func() { b.refuse = errors.New("no") })
	if err := b.m.Abort(t.Context(), "runc", ""); err == nil {
		t.Error("it was aborted")
	}
	b.set(func() { b.refuse = nil })
	b.close()
	b.open(trying(10))
	b.wantTrial(t, "/old", "/new", TrialRunning, "")
	b.close()
	if err := os.WriteFile(filepath.Join(b.dir, "root", "trials.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.open(trying(10))
	if all := strings.Join(b.m.Current().Problems, "\n"); !strings.Contains(all, "trials.json") {
		t.Errorf("problems are %q", all)
	}
}

func TestCandidates(t *testing.T) {
	c := trying(10)
	c.Runtimes = append(c.Runtimes, &handler.Definition{Name: "lame", Path: "/lame", RequiredDevices: []string{"/dev/none"}})
	b := newBed(t, c)
	b.set(func() { b.failures["/lame"] = errLasting })
	for _, state := range []func(){
		func() {},
		func() { b.must(b.reload(c)) },
		func() { _ = b.m.Promote(t.Context(), "runc") },
		func() { _ = b.m.Abort(t.Context(), "runc", "") },
	} {
		state()
		var paths []string
		for _, d := range b.last().Candidates {
			paths = append(paths, d.Path)
		}
		if want := []string{"/old", "/new", "/lame"}; !slices.Equal(paths, want) {
			t.Errorf("got %v", paths)
		}
	}
}

// What an operator wanted is no fault.
func TestFaultOfATrial(t *testing.T) {
	for _, c := range []struct {
		trial       *Trial
		fault, told string
	}{
		{nil, "", ""},
		{&Trial{State: TrialRunning}, "", "running"},
		{&Trial{State: TrialPromoted, Reason: "promoted by an operator"}, "", "promoted"},
		{&Trial{State: TrialAborted, Reason: "slow"}, "", "aborted"},
		{&Trial{State: TrialAborted, Reason: "3 of 3", ByItself: true}, "3 of 3", "failed"},
		{&Trial{State: TrialNotReady, Reason: notProbedYet}, "", "not-ready"},
		{&Trial{State: TrialNotReady, Reason: "it is missing"}, "it is missing", "not-ready"},
	} {
		if fault, told := c.trial.Fault(), c.trial.shown(); fault != c.fault || told != c.told {
			t.Errorf("%+v: fault %q and state %q, want %q and %q", c.trial, fault, told, c.fault, c.told)
		}
	}
}
