package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe"
)

func trying(percent int) *config.Config {
	c := &config.Config{}
	c.DefaultRuntime = "runc"
	c.Runtimes = []*handler.Definition{{
		Name: "runc", Type: handler.OCI, Path: "/old",
		Candidate: &handler.Candidate{Path: "/new", Percent: percent},
	}}
	return c
}

// rollingOut is what a share of new pods runs, and main what the others do.
func (b *bed) rollingOut(t *testing.T) (main, tried string, status *rollout.Status) {
	t.Helper()
	e, _ := b.last().entry("runc")
	if e.Next != nil {
		tried = e.Next.Path
	}
	h := test.Value(b.m.Handler("runc"))(t)
	return e.Definition.Path, tried, h.Rollout
}

func (b *bed) wantRollout(t *testing.T, main, tried string, state rollout.State, reason string) {
	t.Helper()
	m, n, status := b.rollingOut(t)
	if m != main || n != tried || status == nil || status.State != state || !strings.Contains(status.Reason, reason) {
		t.Errorf("pods run %q, and a share %q; the rollout is %+v; want %q, %q, %s (%s)", m, n, status, main, tried, state, reason)
	}
}

// pod is one that tries the next binary, in the configuration of trying(10) or of
// any other that differs in Next only.
func pod(path, sha256, uid string) handler.Attempt {
	d := trying(10).Runtimes[0]
	d.Candidate.Path = path
	return handler.Attempt{Definition: d.WithCandidate(), SHA256: sha256, Pod: uid}
}

var errBroke = errors.New("it broke")

func (b *bed) awaitEnd() {
	b.t.Helper()
	b.wait("the end of the rollout", func() bool { _, tried, _ := b.rollingOut(b.t); return tried == "" })
}

func TestRolloutAbortsItself(t *testing.T) {
	b := newBed(t, trying(10))
	b.wantRollout(t, "/old", "/new", rollout.Running, "")
	for i := range 8 {
		b.m.Began("runc", pod("/new", "", fmt.Sprint("good", i)))
	}
	for range 5 { // one pod is one failure, however often the kubelet tries it
		b.m.Failed("runc", pod("/new", "", "bad0"), errBroke)
	}
	b.m.Failed("runc", pod("/new", "", "bad1"), errBroke)
	b.m.Failed("runc", pod("/elsewhere", "", "bad2"), errors.New("of another rollout"))
	b.wantRollout(t, "/old", "/new", rollout.Running, "")
	b.m.Failed("runc", pod("/new", "", "bad3"), errBroke)
	b.awaitEnd()
	b.wantRollout(t, "/old", "", rollout.Aborted, "3 of 11 pods on the candidate failed to start within 10m0s; last error: it broke")

	b.close()
	b.open(trying(10)) // a restart
	b.wantRollout(t, "/old", "", rollout.Aborted, "3 of 11 pods")
	b.must(b.reload(trying(10)))
	b.wantRollout(t, "/old", "", rollout.Aborted, "3 of 11 pods")
	if _, _, status := b.rollingOut(t); !strings.Contains(status.Fault(), "3 of 11 pods") || status.Label() != "failed" {
		t.Errorf("the rollout is told as %q, with the fault %q", status.Label(), status.Fault())
	}
	b.must(b.reload(trying(20))) // another rollout
	b.wantRollout(t, "/old", "/new", rollout.Running, "")
}

// A rollout is of a program, not of a path: the next program there is judged anew,
// and so is the same one that was taken out of the configuration and put in again.
func TestEachRolloutIsJudgedByItsOwnPods(t *testing.T) {
	b := newBed(t, trying(10))
	sum := "first"
	none := trying(10)
	none.Runtimes[0].Candidate = nil
	became := func(s string) func() {
		return func() {
			b.set(func() { b.sums["/new"] = s })
			test.Must(t, test.Err(b.m.Probe(t.Context(), "runc", probe.Ask)))
			sum = s
		}
	}
	fail := func() {
		for i := range 3 {
			b.m.Failed("runc", pod("/new", sum, fmt.Sprint(i)), errBroke)
		}
		b.awaitEnd()
		b.wantRollout(t, "/old", "", rollout.Aborted, "3 of 3 pods on the candidate failed to start within 10m0s; last error: it broke")
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
			became("not tried")()
			test.Must(t, b.m.Promote(t.Context(), "runc"))
			b.wantRollout(t, "/new", "", rollout.Promoted, "")
			became("fourth")()
		}},
		{"after one that an operator aborted", func() {
			test.Must(t, b.m.Abort(t.Context(), "runc", ""))
			became("fifth")()
		}},
	} {
		next.begin()
		b.wantRollout(t, "/old", "/new", rollout.Running, "")
		for i := range 9 { // pods of the last rollout say nothing about this one
			b.m.Failed("runc", pod("/new", "before "+sum, fmt.Sprint(i)), errors.New("of another rollout"))
		}
		fail()
		if t.Failed() {
			t.Fatal(next.what)
		}
	}
	b.must(b.reload(none))
	if text, err := os.ReadFile(filepath.Join(b.dir, "root", "rollouts.json")); err != nil || strings.Contains(string(text), "aborted") {
		t.Errorf("the decision is kept although the rollout is over: %s, %v", text, err)
	}
}

// A decision holds while the binary is not known yet, and when it comes back the same.
func TestDecisionHoldsForTheSameProgram(t *testing.T) {
	b := newBed(t, trying(10))
	b.set(func() { b.sums["/new"] = "first" })
	look := func() {
		test.Must(t, test.Err(b.m.Probe(t.Context(), "runc", probe.Ask)))
	}
	look()
	test.Must(t, b.m.Abort(t.Context(), "runc", "slow"))
	b.close()
	b.set(func() { b.failures["/new"] = errors.New("gone") })
	b.open(trying(10))
	b.wantRollout(t, "/old", "", rollout.Aborted, "slow")
	b.set(func() { delete(b.failures, "/new") })
	look()
	b.wantRollout(t, "/old", "", rollout.Aborted, "slow")
	broken := trying(10)
	broken.Runtimes[0].Name, broken.DefaultRuntime = "other", "other"
	broken.Broken = []config.Broken{{Name: "runc", Reason: "its file cannot be read"}}
	b.close()
	b.open(broken)
	b.close()
	b.open(trying(10))
	b.wantRollout(t, "/old", "", rollout.Aborted, "slow")
}

func TestPromoteAndAbort(t *testing.T) {
	b := newBed(t, trying(10))
	ctx := t.Context()
	test.Must(t, b.m.Promote(ctx, "runc"))
	b.wantRollout(t, "/new", "", rollout.Promoted, "an operator")
	for i := range 9 { // what was promoted is not rolled out any more
		b.m.Failed("runc", pod("/new", "", fmt.Sprint(i)), errBroke)
	}
	b.close()
	b.open(trying(10))
	b.wantRollout(t, "/new", "", rollout.Promoted, "an operator")
	test.Must(t, b.m.Abort(ctx, "runc", "too slow"))
	b.wantRollout(t, "/old", "", rollout.Aborted, "too slow")

	// The files have the last word.
	test.Must(t, b.m.Promote(ctx, "runc"))
	settled := trying(10)
	settled.Runtimes[0].Path, settled.Runtimes[0].Candidate = "/new", nil
	b.must(b.reload(settled))
	if main, tried, status := b.rollingOut(t); main != "/new" || tried != "" || status != nil {
		t.Errorf("pods run %q and %q, the rollout is %+v", main, tried, status)
	}
	for name, want := range map[string]error{"runc": errdefs.ErrFailedPrecondition, "nobody": errdefs.ErrNotFound} {
		test.ErrorIs(t, b.m.Promote(ctx, name), want, "promoting the binary that %s does not try", name)
		test.ErrorIs(t, b.m.Abort(ctx, name, ""), want, "aborting the rollout that %s has not", name)
	}
}

// An aborted binary in whose place there is one that cannot be probed is not ready,
// as that is what to mend. The decision waits for the program that it is on.
func TestAbortedBinaryReplacedByOneThatCannotBeProbed(t *testing.T) {
	b := newBed(t, trying(10))
	look := func(sum string, failure error) {
		b.set(func() { b.sums["/new"], b.failures["/new"] = sum, failure })
		test.Must(t, test.Err(b.m.Probe(t.Context(), "runc", probe.Ask)))
	}
	look("first", nil)
	test.Must(t, b.m.Abort(t.Context(), "runc", "slow"))
	look("first", errors.New("it says nothing"))
	b.wantRollout(t, "/old", "", rollout.Aborted, "slow")
	look("", errors.New("/new does not exist"))
	b.wantRollout(t, "/old", "", rollout.Aborted, "slow")
	look("false", errors.New("it is no runtime"))
	b.wantRollout(t, "/old", "", rollout.NotReady, "it is no runtime")
	b.close()
	b.open(trying(10)) // a restart
	b.wantRollout(t, "/old", "", rollout.NotReady, "it is no runtime")
	look("first", nil)
	b.wantRollout(t, "/old", "", rollout.Aborted, "slow")
	look("false", errors.New("it is no runtime"))
	look("second", nil)
	b.wantRollout(t, "/old", "/new", rollout.Running, "")
}

func TestCandidateThatIsNotThere(t *testing.T) {
	b := newBed(t, trying(100))
	b.set(func() { b.failures["/new"] = errors.New("/new does not exist") })
	test.Must(t, test.Err(b.m.Probe(t.Context(), "runc", probe.Ask)))
	b.wantRollout(t, "/old", "", rollout.NotReady, "/new does not exist")
	if b.phase("runc") != handler.Ready {
		t.Error("the handler is not ready for want of a binary that it only tries")
	}
	test.Is(t, b.m.Promote(t.Context(), "runc"), errdefs.IsFailedPrecondition, "a binary that is not there was promoted")
}

// What cannot be kept is not in force, and a file that cannot be read is told.
func TestDecisionsThatCannotBeKept(t *testing.T) {
	b := newBed(t, trying(10))
	b.set(func() { b.refuse = errors.New("no") })
	test.Fails(t, b.m.Abort(t.Context(), "runc", ""), "it was aborted")
	b.set(func() { b.refuse = nil })
	b.close()
	b.open(trying(10))
	b.wantRollout(t, "/old", "/new", rollout.Running, "")
	b.close()
	test.Must(t, os.WriteFile(filepath.Join(b.dir, "root", "rollouts.json"), []byte("{"), 0o600))
	b.open(trying(10))
	if all := strings.Join(b.m.Current().Problems, "\n"); !strings.Contains(all, "rollouts.json") {
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
		test.EqualLists(t, "the result", paths, []string{"/old", "/new", "/lame"})
	}
}
