package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/usage"
)

// sandbox is a sandbox that callers can see.
type sandbox struct {
	*store.Object[sandboxSpec, sandboxStatus]
	op     opLock // held by calls that change it as a whole: stop, remove
	making *gate  // who creates containers in it is inside
	cpu    usage.CPURate
	lost   sync.Once // said that its binary was changed
	// creating is the Create of its process, if that was given up.
	creating atomic.Pointer[pendingCall]
	// endAsked is when its shim was first told to end what runs in it.
	endAsked atomic.Pointer[time.Time]
	// killed says that it ran when its shim was found dead.
	killed atomic.Bool
	listed atomic.Pointer[encodedItem]
}

// container is a container that callers can see.
type container struct {
	*store.Object[containerSpec, containerStatus]
	sandbox *sandbox
	op      opLock        // held by calls that change it: start, update, remove
	exited  chan struct{} // closed when EXITED is recorded
	erased  chan struct{} // closed when the runtime has nothing of it any more
	oom     atomic.Bool   // a foreign shim reported an OOM kill
	// creating is its Create, if that was given up.
	creating atomic.Pointer[pendingCall]
	listed   atomic.Pointer[encodedItem]
	cpu      usage.CPURate
}

func newContainer(o *store.Object[containerSpec, containerStatus], s *sandbox) *container {
	return &container{Object: o, sandbox: s, op: newOpLock(), exited: make(chan struct{}), erased: make(chan struct{})}
}

func newSandbox(o *store.Object[sandboxSpec, sandboxStatus]) *sandbox {
	return &sandbox{Object: o, op: newOpLock(), making: newGate()}
}

func (s *sandbox) config() *runtimeapi.PodSandboxConfig  { return s.Spec().Config.msg }
func (c *container) config() *runtimeapi.ContainerConfig { return c.Spec().Config.msg }

// open tells whether new containers may be created and started in s.
func (s *sandbox) open() error {
	st := s.Status()
	if st.Phase != phaseReady || st.Stopping {
		return s.notReady()
	}
	return nil
}

func (s *sandbox) notReady() error {
	return fmt.Errorf("sandbox %s is not ready: run a new sandbox for the pod: %w", s.ID(), errdefs.ErrFailedPrecondition)
}

// opLock is a mutex whose wait a context can end.
type opLock chan struct{}

func newOpLock() opLock { return make(opLock, 1) }

func (l opLock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lockNow does not wait.
func (l opLock) lockNow() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

func (l opLock) unlock() { <-l }

// objects is the index of what callers can see. Objects enter it when the call
// that creates them has succeeded (or could not be undone).
type objects struct {
	mu         sync.RWMutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
	// additions counts what was ever added.
	additions uint64
}

// added is how much was ever added.
func (o *objects) added() uint64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.additions
}

func newObjects() *objects {
	return &objects{sandboxes: map[string]*sandbox{}, containers: map[string]*container{}}
}

func (o *objects) addSandbox(s *sandbox) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sandboxes[s.ID()] = s
	o.additions++
}

func (o *objects) addContainer(c *container) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.containers[c.ID()] = c
	o.additions++
}

func (o *objects) dropSandbox(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.sandboxes, id)
}

func (o *objects) dropContainer(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.containers, id)
}

// sandbox finds by full id or unique prefix.
func (o *objects) sandbox(id string) (*sandbox, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return find(o.sandboxes, "sandbox", id)
}

// container finds by full id or unique prefix.
func (o *objects) container(id string) (*container, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return find(o.containers, "container", id)
}

// running finds one that runs.
func (o *objects) running(id string) (*container, error) {
	c, err := o.container(id)
	if err != nil {
		return nil, err
	}
	if c.Status().Phase != phaseRunning {
		return nil, c.notRunning()
	}
	return c, nil
}

// taken tells who has asked for a name that another has what to do about it.
func (o *objects) taken(err error) error {
	var t *reserve.TakenError
	if !errors.As(err, &t) {
		return err
	}
	const next = "or retry with the next attempt"
	if _, missing := o.sandbox(t.Owner); missing == nil {
		return fmt.Errorf("%w, which is a pod sandbox: remove that (crictl rmp -f %s), %s", err, t.Owner, next)
	}
	if _, missing := o.container(t.Owner); missing == nil {
		return fmt.Errorf("%w, which is a container: remove that (crictl rm -f %s), %s", err, t.Owner, next)
	}
	return fmt.Errorf("%w, which another call is making: wait until that ends, %s", err, next)
}

func find[T any](all map[string]T, kind, id string) (T, error) {
	if x, ok := all[id]; ok {
		return x, nil
	}
	var zero T
	if id == "" {
		return zero, fmt.Errorf("no %s id given: %w", kind, errdefs.ErrInvalidArgument)
	}
	if len(id) >= idLength {
		return zero, fmt.Errorf("%s %q: %w", kind, id, errdefs.ErrNotFound)
	}
	var hits []string
	for full := range all {
		if strings.HasPrefix(full, id) {
			hits = append(hits, full)
		}
	}
	switch len(hits) {
	case 0:
		return zero, fmt.Errorf("%s %q: %w", kind, id, errdefs.ErrNotFound)
	case 1:
		return all[hits[0]], nil
	}
	slices.Sort(hits)
	return zero, fmt.Errorf("%s id %q is ambiguous, it may be %s: %w", kind, id, strings.Join(hits[:min(len(hits), 4)], ", "), errdefs.ErrInvalidArgument)
}

func (o *objects) allSandboxes() []*sandbox {
	o.mu.RLock()
	defer o.mu.RUnlock()
	all := make([]*sandbox, 0, len(o.sandboxes))
	for _, s := range o.sandboxes {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *sandbox) int { return cmp.Compare(b.Spec().CreatedAt, a.Spec().CreatedAt) })
	return all
}

func (o *objects) allContainers() []*container {
	o.mu.RLock()
	defer o.mu.RUnlock()
	all := make([]*container, 0, len(o.containers))
	for _, c := range o.containers {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *container) int { return cmp.Compare(b.Spec().CreatedAt, a.Spec().CreatedAt) })
	return all
}

func (o *objects) containersOf(sandbox string) []*container {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var of []*container
	for _, c := range o.containers {
		if c.Spec().Sandbox == sandbox {
			of = append(of, c)
		}
	}
	slices.SortFunc(of, func(a, b *container) int { return cmp.Compare(a.Spec().CreatedAt, b.Spec().CreatedAt) })
	return of
}

// idLength is the length of an id: 64 hex digits by the CRI's convention, which
// cAdvisor's expressions depend on.
const idLength = 64

func newID() string {
	b := make([]byte, idLength/2)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// clock gives times that never repeat and never go back: the kubelet sorts by
// created_at and takes the last for the newest.
type clock struct{ last atomic.Int64 }

func (c *clock) now() int64 {
	for {
		last := c.last.Load()
		next := max(time.Now().UnixNano(), last+1)
		if c.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

// seen makes later times greater than t.
func (c *clock) seen(t int64) {
	for {
		last := c.last.Load()
		if t <= last || c.last.CompareAndSwap(last, t) {
			return
		}
	}
}
