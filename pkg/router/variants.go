package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
)

// Outcomes hears how pods do of handlers that have a rollout. It must not wait.
type Outcomes interface {
	// Began is told of each pod that gets one of the handler's binaries.
	Began(name string, a handler.Attempt)
	// Failed is told of what the pod's runtime or shim did not do, also of pods of
	// handlers that try nothing.
	Failed(name string, a handler.Attempt, err error)
}

// trials counts starts by variant, and tells Outcomes of them.
type variantCounter struct {
	outcomes Outcomes // may be nil
	variants *variants
}

// variants count the pods of each handler's binaries.
type variants struct{ counts sync.Map } // variantKey → *variantCount

type variantKey struct{ handler, variant string }

type variantCount struct{ pods, failures atomic.Uint64 }

func (v *variants) of(name, variant string) *variantCount {
	key := variantKey{name, variant}
	if c, ok := v.counts.Load(key); ok {
		return c.(*variantCount)
	}
	c, _ := v.counts.LoadOrStore(key, &variantCount{})
	return c.(*variantCount)
}

func variantOf(a handler.Attempt) string {
	if a.Definition == nil {
		return handler.VariantStable
	}
	return a.Definition.VariantName()
}

// attemptOf is that of a sandbox which its backend has.
func attemptOf(o handler.Owned) handler.Attempt {
	a := handler.Attempt{Definition: o.Definition, Pod: o.UID}
	if a.Pod == "" {
		a.Pod = o.Sandbox
	}
	if len(o.Binaries) > 0 {
		a.SHA256 = o.Binaries[0].SHA256
	}
	return a
}

// identified is a with what is known of the sandbox that came of it. The backend
// is asked for the few pods only that try a binary.
func identified(a handler.Attempt, b Backend, sandbox string) handler.Attempt {
	if variantOf(a) == handler.VariantCandidate {
		for _, o := range b.Inventory() {
			if o.Sandbox == sandbox && len(o.Binaries) > 0 {
				a.SHA256 = o.Binaries[0].SHA256
			}
		}
	}
	if a.Pod == "" {
		a.Pod = sandbox
	}
	return a
}

// started is told of the end of each RunPodSandbox that got as far as a backend.
// started counts one start; rollingOut says that the handler has a rollout.
func (t *variantCounter) started(name string, a handler.Attempt, rollingOut bool, err error) {
	c := t.variants.of(name, variantOf(a))
	c.pods.Add(1)
	bad := runtimeFailed(err)
	if bad {
		c.failures.Add(1)
	}
	if !rollingOut || t.outcomes == nil || err != nil && !bad {
		return
	}
	t.outcomes.Began(name, a)
	if bad {
		t.outcomes.Failed(name, a, err)
	}
}

// failed is told of the end of each call that makes or starts a container.
func (t *variantCounter) failed(o *Owner, err error) {
	if o == nil || !runtimeFailed(err) {
		return
	}
	t.variants.of(o.Handler, variantOf(o.Attempt)).failures.Add(1)
	if t.outcomes != nil {
		t.outcomes.Failed(o.Handler, o.Attempt, err)
	}
}

// runtimeFailed says whether an error is the runtime's doing, which only its
// backend knows. That the caller went away is not.
func runtimeFailed(err error) bool {
	return handler.Blamed(err) && !errors.Is(err, context.Canceled) && !errdefs.IsCanceled(err)
}

// Variant is how the pods of one variant of a handler did since the daemon started.
type Variant struct {
	Handler, Variant string
	// Pods counts sandboxes that were begun; Failures the calls to make sandboxes
	// and to make and start containers that failed in their runtime or shim.
	Pods, Failures uint64
}

// report has both variants of each handler that is named or was ever used.
func (v *variants) report(names []string) []Variant {
	for _, name := range names {
		v.of(name, handler.VariantStable)
		v.of(name, handler.VariantCandidate)
	}
	var all []Variant
	v.counts.Range(func(k, counted any) bool {
		key, c := k.(variantKey), counted.(*variantCount)
		all = append(all, Variant{key.handler, key.variant, c.pods.Load(), c.failures.Load()})
		return true
	})
	return all
}
