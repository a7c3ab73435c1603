package lifecycle

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
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

func TestTrialEndsByItself(t *testing.T) {
	b := newBed(t, trying(10))
	b.wantTrial(t, "/old", "/new", TrialRunning, "")
	for i := range 8 {
		b.m.Tried("runc", "/new", fmt.Sprint("good", i))
	}
	for range 5 { // one pod is one failure
		b.m.Failed("runc", "/new", "bad0", errors.New("it broke"))
	}
	b.m.Failed("runc", "/new", "bad1", errors.New("it broke"))
	b.m.Failed("runc", "/elsewhere", "bad2", errors.New("of another trial"))
	b.wantTrial(t, "/old", "/new", TrialRunning, "")
	b.m.Failed("runc", "/new", "bad3", errors.New("it broke"))
	b.wait("the end of the trial", func() bool { _, tried, _ := b.onTrial(t); return tried == "" })
	b.wantTrial(t, "/old", "", TrialAborted, "3 of 11 pods that tried it within 10m0s failed to start, the last with: it broke")

	b.close()
	b.open(trying(10)) // a restart
	b.wantTrial(t, "/old", "", TrialAborted, "3 of 11 pods")
	b.must(b.reload(trying(10)))
	b.wantTrial(t, "/old", "", TrialAborted, "3 of 11 pods")
	b.must(b.reload(trying(20))) // another trial
	b.wantTrial(t, "/old", "/new", TrialRunning, "")
}

func TestFewFailuresAmongManyPods(t *testing.T) {
	b := newBed(t, trying(10))
	for i := range 100 {
		b.m.Tried("runc", "/new", fmt.Sprint(i))
	}
	for i := range 19 {
		b.m.Failed("runc", "/new", fmt.Sprint(i), errors.New("it broke"))
	}
	if b.m.trials.pods["runc"].over {
		t.Error("the trial ends at 19 of 100")
	}
	b.m.Failed("runc", "/new", "19", errors.New("it broke"))
	b.wait("the end of the trial", func() bool { _, tried, _ := b.onTrial(t); return tried == "" })
}

func TestPromoteAndAbort(t *testing.T) {
	b := newBed(t, trying(10))
	ctx := t.Context()
	if err := b.m.Promote(ctx, "runc"); err != nil {
		t.Fatal(err)
	}
	b.wantTrial(t, "/new", "", TrialPromoted, "an operator")
	for i := range 9 { // what was promoted is not on trial any more
		b.m.Failed("runc", "/new", fmt.Sprint(i), errors.New("it broke"))
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

func TestNextBinaryThatIsNotThere(t *testing.T) {
	b := newBed(t, trying(100))
	b.set(func() { b.failures["/new"] = errors.New("/new does not exist") })
	if _, err := b.m.Probe(t.Context(), "runc"); err != nil {
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
