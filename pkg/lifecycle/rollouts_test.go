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

// rollingOut returns the binary of a share of new pods (tried) and that of the others (main).
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

// pod returns a pod on the candidate binary at path, in the configuration trying(10)
// except for this path.
func pod(path, sha256, uid string) handler.Attempt {
	d := trying(10).Runtimes[0]
	d.Candidate.Path = path
	return handler.Attempt{Definition: d.WithCandidate(), SHA256: sha256, Pod: uid}
}

var errBroke = errors.New("it broke")

func (b *bed) awaitEnd() {
	b.t.Helper()
	b.wait("the rollout is over", func() bool { _, tried, _ := b.rollingOut(b.t); return tried == "" })
}

func TestRolloutAbortsItself(t *testing.T) {
	b := newBed(t, trying(10))
	b.wantRollout(t, "/old", "/new", rollout.Running, "")
	for i := range 8 {
		b.m.Began("runc", pod("/new", "", fmt.Sprint("good", i)))
	}
	for range 5 { // a pod counts once, however often the kubelet retries it
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
		t.Errorf("the label of the rollout is %q, its fault %q", status.Label(), status.Fault())
	}
	b.must(b.reload(trying(20))) // another rollout
	b.wantRollout(t, "/old", "/new", rollout.Running, "")
}

// A rollout belongs to a program, not to its path: another program at the path begins a
// new rollout, and so does a candidate that was removed from the configuration and added again.
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
		{"the same, removed and added again", func() { b.must(b.reload(none)); b.must(b.reload(trying(10))) }},
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
		for i := range 9 { // pods of the previous rollout do not count
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

// A decision stays in force while the binary or the handler is broken, and after its repair.
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
	for i := range 9 { // failures of a promoted binary do not abort the rollout
		b.m.Failed("runc", pod("/new", "", fmt.Sprint(i)), errBroke)
	}
	b.close()
	b.open(trying(10))
	b.wantRollout(t, "/new", "", rollout.Promoted, "an operator")
	test.Must(t, b.m.Abort(ctx, "runc", "too slow"))
	b.wantRollout(t, "/old", "", rollout.Aborted, "too slow")

	// The files override a decision.
	test.Must(t, b.m.Promote(ctx, "runc"))
	settled := trying(10)
	settled.Runtimes[0].Path, settled.Runtimes[0].Candidate = "/new", nil
	b.must(b.reload(settled))
	if main, tried, status := b.rollingOut(t); main != "/new" || tried != "" || status != nil {
		t.Errorf("pods run %q and %q, the rollout is %+v", main, tried, status)
	}
	for name, want := range map[string]error{"runc": errdefs.ErrFailedPrecondition, "nobody": errdefs.ErrNotFound} {
		test.ErrorIs(t, b.m.Promote(ctx, name), want, "promote %s, which has no candidate", name)
		test.ErrorIs(t, b.m.Abort(ctx, name, ""), want, "abort the rollout of %s, which has no candidate", name)
	}
}

// If the aborted binary is replaced by one that cannot be probed, the rollout is not ready.
// The decision applies again when the aborted program is back.
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
		t.Error("the handler is not ready because only its candidate is missing")
	}
	test.Is(t, b.m.Promote(t.Context(), "runc"), errdefs.IsFailedPrecondition, "promote a missing binary")
}

// A refused decision is not in force, and an unreadable file is reported as a problem.
func TestDecisionsThatCannotBeKept(t *testing.T) {
	b := newBed(t, trying(10))
	b.set(func() { b.refuse = errors.New("no") })
	test.Fails(t, b.m.Abort(t.Context(), "runc", ""), "a refused abort succeeded")
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
		test.EqualLists(t, "the probed binaries", paths, []string{"/old", "/new", "/lame"})
	}
}
