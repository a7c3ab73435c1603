package probe

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Depth is how thoroughly a handler is checked. Each depth includes those before it.
type Depth int

const (
	// Look queries a runtime only if its binary is new or changed.
	Look Depth = iota
	// Ask always queries the runtime.
	Ask
	// RunPod also runs a self-check pod, even if the handler's configuration does not request one.
	RunPod
	// WithSelfCheck lets the self-check pod try all optional capabilities.
	WithSelfCheck
)

// SelfChecker runs a self-check pod under a handler and removes it. The error names the step that
// failed. If thorough is set, it also tries each optional capability that rt is not known to lack;
// the failure of such an attempt is in Proof and is not an error.
type SelfChecker interface {
	SelfCheck(ctx context.Context, d *handler.Definition, rt *Runtime, thorough bool) (Proof, error)
}

// Proof maps each capability that a self-check pod tried to the reason why it failed; the reason is
// empty if it succeeded.
type Proof map[capability.Name]string

// Note records the result of an attempt; err is nil if it succeeded.
func (p Proof) Note(n capability.Name, err error) {
	p[n] = ""
	if err != nil {
		p[n] = err.Error()
	}
}

// SelfCheckRuns counts the self-check pods of a handler since the daemon started.
type SelfCheckRuns struct {
	Good, Bad uint64
	// Took is the duration of the last run.
	Took time.Duration
}

// SelfChecks is a Checker that also runs self-check pods. A pod runs for handlers that configure it
// or that promise a conformance set, if the runtime is new or was queried, and for every handler at
// depth RunPod or above.
type SelfChecks struct {
	*Checker
	by    SelfChecker
	ready <-chan struct{} // closed once pods may run

	flights singleflight.Group // by the digest of a Definition

	mu   sync.Mutex
	good map[string]proven // by the digest of a Definition
	runs map[string]SelfCheckRuns
}

// proven is the result of self-check pods, with the identities of the runtime that it holds for.
type proven struct {
	on    []Identity
	proof Proof
}

// NewSelfChecks returns SelfChecks that run their pods through by. Pods wait until ready is closed.
func NewSelfChecks(c *Checker, by SelfChecker, ready <-chan struct{}) *SelfChecks {
	return &SelfChecks{Checker: c, by: by, ready: ready, good: map[string]proven{}, runs: map[string]SelfCheckRuns{}}
}

// Check runs Checker.Check, and a self-check pod if one is due.
func (c *SelfChecks) Check(ctx context.Context, d *handler.Definition, depth Depth) (*Runtime, error) {
	rt, err := c.Checker.Check(ctx, d, depth)
	wanted := d.ProbeSelfCheck || len(d.Conforms) > 0
	if err != nil || depth < RunPod && (!wanted || depth == Look && c.Proof(d, rt) != nil) {
		return rt, err
	}
	select {
	case <-c.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// Concurrent calls share one run. A thorough call that joined a basic run starts another.
	for thorough := depth == WithSelfCheck; ; {
		tried, err, _ := c.flights.Do(d.Digest(), func() (any, error) {
			begun := time.Now()
			proof, err := c.by.SelfCheck(ctx, d, rt, thorough)
			c.note(d, rt, time.Since(begun), proof, err)
			return thorough, err
		})
		if err != nil {
			return nil, err
		}
		if tried == true || !thorough {
			return rt, nil
		}
	}
}

// Proof returns the results of self-check pods on this definition and runtime, or nil if none has
// passed since the last failure. The map is shared: do not change it.
func (c *SelfChecks) Proof(d *handler.Definition, rt *Runtime) Proof {
	c.mu.Lock()
	defer c.mu.Unlock()
	if good := c.good[d.Digest()]; equal(good.on, rt.identities()) {
		return good.proof
	}
	return nil
}

// note stores the result of a pod. Results of earlier pods on the same runtime stay for attempts
// that this pod did not make.
func (c *SelfChecks) note(d *handler.Definition, rt *Runtime, took time.Duration, proof Proof, err error) {
	digest, on := d.Digest(), rt.identities()
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := c.runs[d.Name]
	runs.Took = took
	if err != nil {
		runs.Bad++
		delete(c.good, digest)
	} else {
		runs.Good++
		all := Proof{}
		if before := c.good[digest]; equal(before.on, on) {
			maps.Copy(all, before.proof)
		}
		maps.Copy(all, proof)
		c.good[digest] = proven{on, all}
	}
	c.runs[d.Name] = runs
}

// identities returns the identity of the binary and, for a shim, of the runtime that it drives.
func (r *Runtime) identities() []Identity {
	all := []Identity{r.Identity}
	if r.Driven != nil {
		all = append(all, *r.Driven)
	}
	return all
}

// Runs returns the counts of each handler that had a self-check pod.
func (c *SelfChecks) Runs() map[string]SelfCheckRuns {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.runs)
}
