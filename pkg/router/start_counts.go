package router

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/berth-cri/berth/pkg/handler"
)

// Outcomes receives the results of starts of pods and containers. Its methods must not wait.
type Outcomes interface {
	// Began is called for each pod that was started, or failed in its runtime or shim, under a
	// handler with a rollout.
	Began(name string, a handler.Attempt)
	// Failed is called when the pod's runtime or shim failed.
	Failed(name string, a handler.Attempt, err error)
	// Started is called after each successful start of a container, which proves that the handler
	// runs pods.
	Started(name string, a handler.Attempt)
	// NotStarted is called for each sandbox or container that was not created or started, unless
	// the request was the cause.
	NotStarted(name string, a handler.Attempt, err error)
}

// startCounter counts starts by binary and reports them to Outcomes.
type startCounter struct {
	outcomes Outcomes // may be nil
	counts   *startCounts
}

// startCounts counts the starts of each handler by binary.
type startCounts struct{ byKey sync.Map } // startKey → *startCount

type startKey struct{ handler, binary string }

type startCount struct{ pods, failures atomic.Uint64 }

func (s *startCounts) of(name, binary string) *startCount {
	key := startKey{name, binary}
	c, there := s.byKey.Load(key)
	if !there {
		c, _ = s.byKey.LoadOrStore(key, &startCount{})
	}
	return c.(*startCount)
}

func binaryOf(a handler.Attempt) string {
	if a.Definition == nil {
		return handler.BinaryStable
	}
	return a.Definition.BinaryName()
}

// attemptOf returns the attempt of an existing sandbox.
func attemptOf(o handler.Owned) handler.Attempt {
	a := handler.Attempt{Definition: o.Definition, Pod: o.UID}
	a.Pod = cmp.Or(a.Pod, o.Sandbox)
	if len(o.Binaries) > 0 {
		a.SHA256 = o.Binaries[0].SHA256
	}
	return a
}

// identified adds the digest of a candidate's binary to a, and the sandbox's ID if the pod has no
// UID. It takes the inventory only for pods on a candidate, which are few.
func identified(a handler.Attempt, b Backend, sandbox string) handler.Attempt {
	if binaryOf(a) == handler.BinaryCandidate {
		for _, o := range b.Inventory() {
			if o.Sandbox == sandbox && len(o.Binaries) > 0 {
				a.SHA256 = o.Binaries[0].SHA256
			}
		}
	}
	a.Pod = cmp.Or(a.Pod, sandbox)
	return a
}

// started counts a start that reached its backend. rollingOut is set if the handler has a rollout;
// reported is set if watch has reported the start.
func (t *startCounter) started(name string, a handler.Attempt, rollingOut bool, err error, reported bool) {
	c := t.counts.of(name, binaryOf(a))
	c.pods.Add(1)
	bad := runtimeFailed(err)
	if bad {
		c.failures.Add(1)
	}
	if !reported {
		t.notStarted(name, a, err)
	}
	if !rollingOut || t.outcomes == nil || err != nil && !bad {
		return
	}
	t.outcomes.Began(name, a)
	if bad {
		t.outcomes.Failed(name, a, err)
	}
}

// ended counts a call that creates or starts a container.
func (t *startCounter) ended(o *Owner, start bool, err error, reported bool) {
	if o == nil {
		return
	}
	if start && err == nil && t.outcomes != nil {
		t.outcomes.Started(o.Handler, o.Attempt)
	}
	if !reported {
		t.notStarted(o.Handler, o.Attempt, err)
	}
	if !runtimeFailed(err) {
		return
	}
	t.counts.of(o.Handler, binaryOf(o.Attempt)).failures.Add(1)
	if t.outcomes != nil {
		t.outcomes.Failed(o.Handler, o.Attempt, err)
	}
}

// errOverdue is the error of a start that is still running at its caller's deadline.
var errOverdue = errors.New("the start did not finish before its caller's deadline: a network plugin (child process of berth) or a runtime (child process of berth-shim) hangs, see \"ps axf\"; start_timeout aborts such a start")

// watch reports a start as failed if it is still running at its caller's deadline. ended stops the
// watch, and returns whether the start was reported. It must be called once.
func (t *startCounter) watch(ctx context.Context, name string, a handler.Attempt) (ended func() bool) {
	overdue := make(chan bool, 1)
	stop := context.AfterFunc(ctx, func() {
		end, bounded := ctx.Deadline()
		late := bounded && time.Until(end) < time.Second/10 // callers may cancel a little earlier
		if overdue <- late; late {
			t.notStarted(name, a, errOverdue)
		}
	})
	return func() bool { return !stop() && <-overdue }
}

func (t *startCounter) notStarted(name string, a handler.Attempt, err error) {
	if t.outcomes != nil && nodeFailed(err) {
		t.outcomes.NotStarted(name, a, err)
	}
}

// nodeFailed reports whether a start failed because of the runtime or a resource of the node, such
// as a network or disk, and not because of the request.
func nodeFailed(err error) bool {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errdefs.IsCanceled(err), handler.IsPodFault(err):
		return false
	case handler.IsRuntimeFault(err):
		return true
	}
	if st, ok := grpcstatus.FromError(err); ok { // from another daemon
		err = errgrpc.ToNative(st.Err())
	}
	for _, ofRequest := range []func(error) bool{
		errdefs.IsInvalidArgument, errdefs.IsNotFound, errdefs.IsAlreadyExists, errdefs.IsFailedPrecondition,
		errdefs.IsNotImplemented, errdefs.IsPermissionDenied, errdefs.IsUnauthorized,
	} {
		if ofRequest(err) {
			return false
		}
	}
	return true
}

// runtimeFailed reports whether the backend attributes an error to the runtime. A call that was
// cancelled does not count.
func runtimeFailed(err error) bool {
	return handler.IsRuntimeFault(err) && !errors.Is(err, context.Canceled) && !errdefs.IsCanceled(err)
}

// BinaryStarts counts the starts of pods on one binary of a handler since the daemon started.
type BinaryStarts struct {
	// Binary is handler.BinaryStable or handler.BinaryCandidate.
	Handler, Binary string
	// Pods counts the starts of sandboxes that reached the backend, failed ones included. Failures
	// counts calls to create a sandbox, or create or start a container, that failed in runtime or shim.
	Pods, Failures uint64
}

// report returns both binaries of each named handler, and every binary that was used.
func (s *startCounts) report(names []string) []BinaryStarts {
	for _, name := range names {
		s.of(name, handler.BinaryStable)
		s.of(name, handler.BinaryCandidate)
	}
	var all []BinaryStarts
	s.byKey.Range(func(k, counted any) bool {
		key, c := k.(startKey), counted.(*startCount)
		all = append(all, BinaryStarts{key.handler, key.binary, c.pods.Load(), c.failures.Load()})
		return true
	})
	return all
}
