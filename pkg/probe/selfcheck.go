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

// Depth is how closely a handler is looked at.
type Depth int

const (
	// Look asks a runtime only if it is new.
	Look Depth = iota
	// Ask asks it in any case.
	Ask
	// RunPod also runs a self-check pod, whatever the handler's configuration says.
	RunPod
	// WithSelfCheck has that pod try all that pods can do.
	WithSelfCheck
)

// SelfChecker runs a pod of its own under a handler, and leaves nothing of it. The error
// says at which step it failed. With thorough it also tries what pods can do beyond
// running, as far as rt is not known to lack it; what of that fails is no error.
type SelfChecker interface {
	SelfCheck(ctx context.Context, d *handler.Definition, rt *Runtime, thorough bool) (Proof, error)
}

// Proof is what self-check pods did: a capability, and why they failed with it, or
// nothing if they did not.
type Proof map[capability.Name]string

// Note adds a capability that was tried, and why that failed, if it did.
func (p Proof) Note(n capability.Name, err error) {
	p[n] = ""
	if err != nil {
		p[n] = err.Error()
	}
}

// SelfCheckRuns is what came of the self-check pods of a handler since the daemon started.
type SelfCheckRuns struct {
	Good, Bad uint64
	// Took is how long the last one did.
	Took time.Duration
}

// SelfChecks are a Checker that also runs self-check pods: of handlers that want them, or
// that promise what only a pod can show,
// whenever their runtime is new or asked, and whenever somebody insists.
type SelfChecks struct {
	*Checker
	by    SelfChecker
	ready <-chan struct{} // closed when by may run pods

	flights singleflight.Group // by the digest of a Definition

	mu   sync.Mutex
	good map[string]proven // by the digest of a Definition
	runs map[string]SelfCheckRuns
}

// proven is what pods did, and on which runtime.
type proven struct {
	on    []Identity
	proof Proof
}

// NewSelfChecks makes SelfChecks whose pods are run by who can do so from when ready is closed.
func NewSelfChecks(c *Checker, by SelfChecker, ready <-chan struct{}) *SelfChecks {
	return &SelfChecks{Checker: c, by: by, ready: ready, good: map[string]proven{}, runs: map[string]SelfCheckRuns{}}
}

// Check is that of the Checker, and of a self-check pod if there is to be one.
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
	// Who comes while one runs takes what comes of that, unless it asks for more.
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

// Proof is what pods did on exactly that, nil if none ran. It is shared.
func (c *SelfChecks) Proof(d *handler.Definition, rt *Runtime) Proof {
	c.mu.Lock()
	defer c.mu.Unlock()
	if good := c.good[d.Digest()]; equal(good.on, rt.identities()) {
		return good.proof
	}
	return nil
}

// note keeps what came of a pod, and what earlier ones did that this one did not try.
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

// identities are those of the binary, and of the runtime that it drives.
func (r *Runtime) identities() []Identity {
	all := []Identity{r.Identity}
	if r.Driven != nil {
		all = append(all, *r.Driven)
	}
	return all
}

// Runs are those of each handler that had any.
func (c *SelfChecks) Runs() map[string]SelfCheckRuns {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.runs)
}
