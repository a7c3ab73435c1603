package probe

import (
	"context"
	"errors"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// selfCheckFunc replaces the run of a self-check pod.
type selfCheckFunc func(d *handler.Definition) error

func (f selfCheckFunc) SelfCheck(_ context.Context, d *handler.Definition, _ *Runtime, _ bool) (Proof, error) {
	return nil, f(d)
}

// already returns a closed channel.
func already() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

func TestWhenASelfCheckRuns(t *testing.T) {
	dir := t.TempDir()
	path, _ := replay(t, dir, "runc-1.5.2")
	var ran atomic.Int32
	var fails error
	c := NewSelfChecks(NewChecker(New(nil)), selfCheckFunc(func(*handler.Definition) error { ran.Add(1); return fails }), already())
	plain, wants, promises := oci(path), oci(path), oci(path)
	wants.Name, wants.ProbeSelfCheck = "wants", true
	promises.Name, promises.Conforms = "promises", []string{"sandboxed/v1"}
	for _, step := range []struct {
		what  string
		d     *handler.Definition
		depth Depth
		runs  int32
		fails error
		prior func()
	}{
		{what: "a look", d: plain, depth: Look},
		{what: "a query", d: plain, depth: Ask},
		{what: "a requested self-check", d: plain, depth: WithSelfCheck, runs: 1},
		{what: "a new handler with a self-check", d: wants, depth: Look, runs: 1},
		{what: "a known handler with a self-check", d: wants, depth: Look},
		{what: "a new handler with a profile", d: promises, depth: Look, runs: 1},
		{what: "a known handler with a profile", d: promises, depth: Look},
		{what: "a query of a known handler", d: wants, depth: Ask, runs: 1},
		{what: "a failing self-check", d: wants, depth: Ask, runs: 1, fails: errors.New("no")},
		{what: "a look after a failure", d: wants, depth: Look, runs: 1, fails: errors.New("no")},
		{what: "a success after a failure", d: wants, depth: Look, runs: 1},
		{what: "a replaced runtime", d: wants, depth: Look, runs: 1, prior: func() { replay(t, dir, "runc-1.5.2") }},
		{what: "a removed runtime", d: wants, depth: WithSelfCheck, prior: func() { _ = os.Remove(path) }},
	} {
		if step.prior != nil {
			step.prior()
		}
		ran.Store(0)
		fails = step.fails
		rt, err := c.Check(t.Context(), step.d, step.depth)
		gone := step.what == "a removed runtime"
		if ran.Load() != step.runs || !gone && !errors.Is(err, step.fails) || (rt == nil) != (err != nil) || gone && err == nil {
			t.Errorf("%s: %d self-check pods ran, %v, %v", step.what, ran.Load(), rt, err)
		}
	}
	if got := c.Runs()["wants"]; got.Good != 4 || got.Bad != 2 {
		t.Errorf("the counts are %+v", got)
	}
}

// A check waits until self-check pods can run, which is later than the daemon's start.
func TestASelfCheckWaitsForWhoRunsIt(t *testing.T) {
	path, _ := replay(t, t.TempDir(), "runc-1.5.2")
	ready := make(chan struct{})
	c := NewSelfChecks(NewChecker(New(nil)), selfCheckFunc(func(*handler.Definition) error { return nil }), ready)
	d := oci(path)
	d.ProbeSelfCheck = true
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	for _, ctx := range []context.Context{ctx, t.Context()} {
		go func() {
			_, err := c.Check(ctx, d, Look)
			ended <- err
		}()
	}
	cancel()
	test.ErrorIs(t, <-ended, context.Canceled, "a canceled check")
	close(ready)
	test.Check(t, <-ended)
}

// trying replaces self-check pods. It records the value of thorough, and returns proof and err.
type trying struct {
	thorough []bool
	proof    Proof
	err      error
	started  chan struct{} // if set, gets a value at each start
	goOn     chan struct{} // lets a start continue
}

func (c *trying) SelfCheck(_ context.Context, _ *handler.Definition, _ *Runtime, thorough bool) (Proof, error) {
	c.thorough = append(c.thorough, thorough)
	if c.started != nil {
		c.started <- struct{}{}
		<-c.goOn
	}
	return maps.Clone(c.proof), c.err
}

func TestWhatSelfChecksProve(t *testing.T) {
	dir := t.TempDir()
	path, _ := replay(t, dir, "runc-1.5.2")
	by := &trying{proof: Proof{capability.Exec: "", capability.InPlaceResize: "no"}}
	c := NewSelfChecks(NewChecker(New(nil)), by, already())
	d := oci(path)
	d.ProbeSelfCheck = true
	proof := func(depth Depth) Proof {
		rt, err := c.Check(t.Context(), d, depth)
		if err != nil && by.err == nil {
			t.Fatal(err)
		}
		if rt == nil {
			rt, _ = c.Checker.Check(t.Context(), d, Look)
		}
		return c.Proof(d, rt)
	}
	if got := proof(WithSelfCheck); !maps.Equal(got, by.proof) {
		t.Errorf("the proof is %v", got)
	}
	by.proof = nil
	if got := proof(Ask); len(got) != 2 {
		t.Errorf("after a pod that tried nothing, the proof is %v", got)
	}
	by.proof = Proof{capability.InPlaceResize: ""}
	if got := proof(WithSelfCheck); !maps.Equal(got, Proof{capability.Exec: "", capability.InPlaceResize: ""}) {
		t.Errorf("after another try, the proof is %v", got)
	}
	test.EqualLists(t, "thorough", by.thorough, []bool{true, false, true})
	by.err = errors.New("it does not run")
	if got := proof(Ask); got != nil {
		t.Errorf("after a failure, the proof is %v", got)
	}
	by.err = nil
	proof(WithSelfCheck)
	replay(t, dir, "runc-1.5.2")
	by.proof = nil
	if got := proof(Look); len(got) != 0 {
		t.Errorf("the proof of another binary is %v", got)
	}
}

// A thorough self-check that is requested during a plain one gets its own pod.
func TestWhoAsksForMoreWaits(t *testing.T) {
	path, _ := replay(t, t.TempDir(), "runc-1.5.2")
	by := &trying{started: make(chan struct{}), goOn: make(chan struct{})}
	c := NewSelfChecks(NewChecker(New(nil)), by, already())
	d := oci(path)
	d.ProbeSelfCheck = true
	var both sync.WaitGroup
	ask := func(depth Depth) {
		both.Go(func() {
			test.Check(t, test.Err(c.Check(t.Context(), d, depth)))
		})
	}
	ask(Ask)
	<-by.started
	ask(WithSelfCheck)
	by.goOn <- struct{}{}
	<-by.started
	by.goOn <- struct{}{}
	both.Wait()
	test.EqualLists(t, "thorough", by.thorough, []bool{false, true})
}
