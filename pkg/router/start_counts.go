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

// Outcomes hears how starts of pods and containers end. It must not wait.
type Outcomes interface {
	// Began is called for each pod of a rollout that gets one of the handler's binaries.
	Began(name string, a handler.Attempt)
	// Failed is called for what the pod's runtime or shim did not do.
	Failed(name string, a handler.Attempt, err error)
	// Started is called when a container was started: the handler runs pods.
	Started(name string, a handler.Attempt)
	// NotStarted is called for each sandbox or container that was not created or started
	// for a reason that is not the caller's request.
	NotStarted(name string, a handler.Attempt, err error)
}

// startCounter counts starts by binary and passes them on to Outcomes.
type startCounter struct {
	outcomes Outcomes // may be nil
	counts   *startCounts
}

// startCounts counts the pods of each handler's binaries.
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

// attemptOf is that of a sandbox which its backend has.
func attemptOf(o handler.Owned) handler.Attempt {
	a := handler.Attempt{Definition: o.Definition, Pod: o.UID}
	a.Pod = cmp.Or(a.Pod, o.Sandbox)
	if len(o.Binaries) > 0 {
		a.SHA256 = o.Binaries[0].SHA256
	}
	return a
}

// identified is a with what is known of the sandbox that came of it. The backend
// is asked for the few pods only that try a binary.
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

// started counts one start that got as far as a backend. rollingOut is whether the handler
// has a rollout, told whether watch has passed the start on.
func (t *startCounter) started(name string, a handler.Attempt, rollingOut bool, err error, told bool) {
	c := t.counts.of(name, binaryOf(a))
	c.pods.Add(1)
	bad := runtimeFailed(err)
	if bad {
		c.failures.Add(1)
	}
	if !told {
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

// ended counts the end of a call that creates or starts a container.
func (t *startCounter) ended(o *Owner, start bool, err error, told bool) {
	if o == nil {
		return
	}
	if start && err == nil && t.outcomes != nil {
		t.outcomes.Started(o.Handler, o.Attempt)
	}
	if !told {
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

// errOverdue is why a start counts as failed whose caller's time is over.
var errOverdue = errors.New("the start has not finished, and its caller's time is over: a network plugin below berth or a runtime below berth-shim hangs (\"ps axf\" shows it); start_timeout ends it")

// watch counts a start as failed that has not finished when its caller's time is over.
// ended ends that, and says whether it was counted.
func (t *startCounter) watch(ctx context.Context, name string, a handler.Attempt) (ended func() bool) {
	var overdue atomic.Bool
	stop := context.AfterFunc(ctx, func() {
		if end, bounded := ctx.Deadline(); bounded && time.Until(end) < time.Second/10 { // the caller may leave a little earlier
			overdue.Store(true)
			t.notStarted(name, a, errOverdue)
		}
	})
	return func() bool { return !stop() && overdue.Load() }
}

func (t *startCounter) notStarted(name string, a handler.Attempt, err error) {
	if t.outcomes != nil && nodeFailed(err) {
		t.outcomes.NotStarted(name, a, err)
	}
}

// nodeFailed reports whether a start failed for another reason than its request: in the
// runtime, or in what the node gives to pods, such as networks and disks.
func nodeFailed(err error) bool {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errdefs.IsCanceled(err), handler.IsOfPod(err):
		return false
	case handler.Blamed(err):
		return true
	}
	if st, ok := grpcstatus.FromError(err); ok { // of another daemon
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

// runtimeFailed says whether an error is the runtime's doing, which only its
// backend knows. That the caller went away is not.
func runtimeFailed(err error) bool {
	return handler.Blamed(err) && !errors.Is(err, context.Canceled) && !errdefs.IsCanceled(err)
}

// BinaryStarts counts the starts of pods on one binary of a handler since the daemon started.
// Binary is handler.BinaryStable or handler.BinaryCandidate.
type BinaryStarts struct {
	Handler, Binary string
	// Pods counts sandboxes that were begun; Failures the calls to make sandboxes
	// and to make and start containers that failed in their runtime or shim.
	Pods, Failures uint64
}

// report has both binaries of each handler that is named or was ever used.
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
