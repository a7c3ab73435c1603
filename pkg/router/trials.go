package router

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/pkg/handler"
)

// Judge hears how pods do that try a handler's next binary. It must not wait.
type Judge interface {
	// Tried is told of each pod that tries the binary at path. pod is its id, or
	// its uid for one that did not come to be.
	Tried(handler, path, pod string)
	// Failed is told of what failed in a pod that tries it, for no fault of the
	// caller's.
	Failed(handler, path, pod string, err error)
}

// trials counts starts by variant, and tells the Judge of those on trial.
type trials struct {
	judge  Judge    // may be nil
	counts sync.Map // variantKey → *variantCount
}

type variantKey struct{ handler, variant string }

type variantCount struct{ pods, failures atomic.Uint64 }

func (t *trials) count(name, variant string) *variantCount {
	key := variantKey{name, variant}
	if c, ok := t.counts.Load(key); ok {
		return c.(*variantCount)
	}
	c, _ := t.counts.LoadOrStore(key, &variantCount{})
	return c.(*variantCount)
}

func variantOf(tried string) string {
	if tried != "" {
		return handler.VariantNext
	}
	return handler.VariantStable
}

// started is told of the end of each RunPodSandbox that got as far as a backend.
func (t *trials) started(name, tried, pod string, err error) {
	c := t.count(name, variantOf(tried))
	c.pods.Add(1)
	bad := runtimeFailed(err, false)
	if bad {
		c.failures.Add(1)
	}
	if tried == "" || t.judge == nil || err != nil && !bad {
		return
	}
	t.judge.Tried(name, tried, pod)
	if bad {
		t.judge.Failed(name, tried, pod, err)
	}
}

// failed is told of the end of each call that makes or starts a container.
func (t *trials) failed(o *Owner, starting bool, err error) {
	if o == nil || !runtimeFailed(err, starting) {
		return
	}
	t.count(o.Handler, variantOf(o.Tried)).failures.Add(1)
	if o.Tried != "" && t.judge != nil {
		t.judge.Failed(o.Handler, o.Tried, o.Sandbox, err)
	}
}

// callers are the codes of errors that say nothing about the runtime.
var callers = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.ResourceExhausted,
	codes.Canceled, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented, codes.FailedPrecondition,
}

// runtimeFailed says whether an error may be the runtime's doing. That a
// container cannot be started for its state is told like that its runtime cannot
// be run at all.
func runtimeFailed(err error, starting bool) bool {
	if err == nil {
		return false
	}
	code := status.Code(errgrpc.ToGRPC(err))
	return starting && code == codes.FailedPrecondition || !slices.Contains(callers, code)
}

// Variant is how the pods of one variant of a handler did since the daemon started.
type Variant struct {
	Handler, Variant string
	// Pods counts sandboxes that were begun; Failures the calls to make sandboxes
	// and to make and start containers that failed for no fault of the caller's.
	Pods, Failures uint64
}

// report has both variants of each handler that is named or was ever used.
func (t *trials) report(names []string) []Variant {
	for _, name := range names {
		t.count(name, handler.VariantStable)
		t.count(name, handler.VariantNext)
	}
	var all []Variant
	t.counts.Range(func(k, v any) bool {
		key, c := k.(variantKey), v.(*variantCount)
		all = append(all, Variant{key.handler, key.variant, c.pods.Load(), c.failures.Load()})
		return true
	})
	return all
}
