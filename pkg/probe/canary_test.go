package probe

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/berth-cri/berth/pkg/handler"
)

// canaryFunc is who runs canary pods.
type canaryFunc func(d *handler.Definition) error

func (f canaryFunc) Canary(_ context.Context, d *handler.Definition, _ *Runtime, _ bool) (Proof, error) {
	return nil, f(d)
}

func TestWhenACanaryRuns(t *testing.T) {
	dir := t.TempDir()
	path, _ := replay(t, dir, "runc-1.5.2")
	c := NewCanaries(NewChecker(New(nil)))
	var ran atomic.Int32
	var fails error
	c.Serve(canaryFunc(func(*handler.Definition) error { ran.Add(1); return fails }))
	plain, wants := oci(path), oci(path)
	wants.Name, wants.ProbeCanary = "wants", true
	for _, step := range []struct {
		what  string
		d     *handler.Definition
		depth Depth
		runs  int32
		fails error
		prior func()
	}{
		{what: "a look", d: plain, depth: Look},
		{what: "a question", d: plain, depth: Ask},
		{what: "somebody insists", d: plain, depth: WithCanary, runs: 1},
		{what: "it is new", d: wants, depth: Look, runs: 1},
		{what: "it is known", d: wants, depth: Look},
		{what: "it is asked", d: wants, depth: Ask, runs: 1},
		{what: "it fails", d: wants, depth: Ask, runs: 1, fails: errors.New("no")},
		{what: "it failed", d: wants, depth: Look, runs: 1, fails: errors.New("no")},
		{what: "it works again", d: wants, depth: Look, runs: 1},
		{what: "its runtime is another", d: wants, depth: Look, runs: 1, prior: func() { replay(t, dir, "runc-1.5.2") }},
		{what: "its runtime is gone", d: wants, depth: WithCanary, prior: func() { _ = os.Remove(path) }},
	} {
		if step.prior != nil {
			step.prior()
		}
		ran.Store(0)
		fails = step.fails
		rt, err := c.Check(t.Context(), step.d, step.depth)
		gone := step.what == "its runtime is gone"
		if ran.Load() != step.runs || !gone && !errors.Is(err, step.fails) || (rt == nil) != (err != nil) || gone && err == nil {
			t.Errorf("%s: %d ran, %v, %v", step.what, ran.Load(), rt, err)
		}
	}
	if got := c.Runs()["wants"]; got.Good != 4 || got.Bad != 2 {
		t.Errorf("counted %+v", got)
	}
}

// Nobody can run pods yet when a daemon starts.
func TestACanaryWaitsForWhoRunsIt(t *testing.T) {
	path, _ := replay(t, t.TempDir(), "runc-1.5.2")
	c := NewCanaries(NewChecker(New(nil)))
	d := oci(path)
	d.ProbeCanary = true
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, ctx := range []context.Context{ctx, t.Context()} {
		go func() {
			_, err := c.Check(ctx, d, Look)
			ended <- err
		}()
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	c.Serve(canaryFunc(func(*handler.Definition) error { return nil }))
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
