package pod

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/reserve"
)

// Index contains the objects that callers can see. Objects enter it when their creation has
// succeeded, or could not be rolled back.
type Index struct {
	mu         sync.RWMutex
	sandboxes  map[string]*Sandbox
	containers map[string]*Container

	// newestSandboxes and newestContainers are the sorted lists, nil after a change.
	newestSandboxes                   []*Sandbox
	newestContainers                  []*Container
	listedSandboxes, listedContainers atomic.Pointer[encodedList]
}

// NewIndex returns an empty Index.
func NewIndex() *Index {
	return &Index{sandboxes: map[string]*Sandbox{}, containers: map[string]*Container{}}
}

// AddSandbox makes a sandbox visible to callers.
func (o *Index) AddSandbox(s *Sandbox) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sandboxes[s.ID()], o.newestSandboxes = s, nil
}

// AddContainer makes a container visible to callers.
func (o *Index) AddContainer(c *Container) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.containers[c.ID()], o.newestContainers = c, nil
}

// DropSandbox removes a sandbox from the index.
func (o *Index) DropSandbox(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.sandboxes, id)
	o.newestSandboxes = nil
}

// DropContainer removes a container from the index.
func (o *Index) DropContainer(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.containers, id)
	o.newestContainers = nil
}

// Sandbox finds a sandbox by its full id or a unique prefix.
func (o *Index) Sandbox(id string) (*Sandbox, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return find(o.sandboxes, "sandbox", id)
}

// Container finds a container by its full id or a unique prefix.
func (o *Index) Container(id string) (*Container, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return find(o.containers, "container", id)
}

// Running returns a running container.
func (o *Index) Running(id string) (*Container, error) {
	c, err := o.Container(id)
	if err != nil {
		return nil, err
	}
	if c.Status().Phase != PhaseRunning {
		return nil, c.NotRunning()
	}
	return c, nil
}

// ExplainTaken adds to a name conflict what the caller can do about it.
func (o *Index) ExplainTaken(err error) error {
	var t *reserve.TakenError
	if !errors.As(err, &t) {
		return err
	}
	const next = "or retry with the next attempt"
	if _, missing := o.Sandbox(t.Owner); missing == nil {
		return fmt.Errorf("%w, which is a pod sandbox: remove that (crictl rmp -f %s), %s", err, t.Owner, next)
	}
	if _, missing := o.Container(t.Owner); missing == nil {
		return fmt.Errorf("%w, which is a container: remove that (crictl rm -f %s), %s", err, t.Owner, next)
	}
	return fmt.Errorf("%w, which another call is creating: wait until that is done, %s", err, next)
}

func find[T any](all map[string]T, kind, id string) (T, error) {
	if x, ok := all[id]; ok {
		return x, nil
	}
	var zero T
	if id == "" {
		return zero, fmt.Errorf("no %s ID given: %w", kind, errdefs.ErrInvalidArgument)
	}
	if len(id) >= IDLength {
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
	return zero, fmt.Errorf("%s ID %q is ambiguous, it matches %s: %w", kind, id, strings.Join(hits[:min(len(hits), 4)], ", "), errdefs.ErrInvalidArgument)
}

// AllSandboxes returns all sandboxes, newest first. Callers must not change the list.
func (o *Index) AllSandboxes() []*Sandbox {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.newestSandboxes == nil {
		o.newestSandboxes = slices.SortedFunc(maps.Values(o.sandboxes), func(a, b *Sandbox) int { return cmp.Compare(b.Spec().CreatedAt, a.Spec().CreatedAt) })
	}
	return o.newestSandboxes
}

// AllContainers is AllSandboxes for containers.
func (o *Index) AllContainers() []*Container {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.newestContainers == nil {
		o.newestContainers = slices.SortedFunc(maps.Values(o.containers), func(a, b *Container) int { return cmp.Compare(b.Spec().CreatedAt, a.Spec().CreatedAt) })
	}
	return o.newestContainers
}

// ContainersOf returns the containers of a sandbox, oldest first.
func (o *Index) ContainersOf(sandbox string) []*Container {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var of []*Container
	for _, c := range o.containers {
		if c.Spec().Sandbox == sandbox {
			of = append(of, c)
		}
	}
	slices.SortFunc(of, func(a, b *Container) int { return cmp.Compare(a.Spec().CreatedAt, b.Spec().CreatedAt) })
	return of
}

// Waits reports whether a restored sandbox waits for containers that are restored with it: they get
// processes only when all are started. That never happens if one exits before its start.
func (o *Index) Waits(s *Sandbox) bool {
	return s.Spec().Checkpoint != "" && o.restored(s, func(st *ContainerStatus) bool { return st.StartedAt == 0 })
}

// NeedsCheckpoint reports whether a restored sandbox still needs its checkpoint for a container
// that was not started. A container that failed to start no longer needs it.
func (o *Index) NeedsCheckpoint(s *Sandbox) bool {
	return s.Spec().Checkpoint != "" && o.restored(s, func(st *ContainerStatus) bool { return st.Phase == PhaseCreated })
}

func (o *Index) restored(s *Sandbox, is func(*ContainerStatus) bool) bool {
	return slices.ContainsFunc(o.ContainersOf(s.ID()), func(c *Container) bool { return c.Spec().Checkpoint != "" && is(c.Status()) })
}

// IDLength is the length of an id: 64 hex digits by the CRI's convention, which cAdvisor's
// expressions require.
const IDLength = 64

// NewID returns a random id.
func NewID() string {
	b := make([]byte, IDLength/2)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Clock returns times that never repeat and never go back: the kubelet sorts by created_at and
// treats the last as the newest.
type Clock struct{ last atomic.Int64 }

// Now is later than all returned and seen times.
func (c *Clock) Now() int64 {
	for {
		last := c.last.Load()
		next := max(time.Now().UnixNano(), last+1)
		if c.last.CompareAndSwap(last, next) {
			return next
		}
	}
}

// Seen makes later times greater than t.
func (c *Clock) Seen(t int64) {
	for {
		last := c.last.Load()
		if t <= last || c.last.CompareAndSwap(last, t) {
			return
		}
	}
}

// TargetPID is the process with the PID namespace that a container joins; 0 unless its mode is
// TARGET.
func (o *Index) TargetPID(s *Sandbox, c *runtimeapi.ContainerConfig) (int, error) {
	asked := c.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if asked.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return 0, nil
	}
	t, err := o.Container(asked.GetTargetId())
	if err != nil {
		return 0, fmt.Errorf("target container: %w", err)
	}
	if t.Sandbox != s || t.Status().Phase != PhaseRunning {
		return 0, fmt.Errorf("target container %s must run in the same sandbox: %w", asked.GetTargetId(), errdefs.ErrFailedPrecondition)
	}
	return t.Status().PID, nil
}

// encodedItem caches the last encoding of a list's item.
type encodedItem struct{ last atomic.Pointer[encodedState] }

// encodedState is an item in one state, with the tag of its field.
type encodedState struct {
	state int32
	bytes []byte
}

// itemsField is the field number of items in all lists of the CRI.
var itemsField = (&runtimeapi.ListPodSandboxResponse{}).ProtoReflect().Descriptor().Fields().ByName("items").Number()

// encoded returns the last encoding if the state is the same, and otherwise encodes the item of id.
func (e *encodedItem) encoded(id string, state int32, item func() proto.Message) ([]byte, error) {
	if last := e.last.Load(); last != nil && last.state == state {
		return last.bytes, nil
	}
	content, err := proto.Marshal(item())
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", id, err)
	}
	// b has no spare capacity, because it is kept.
	head := protowire.SizeTag(itemsField) + protowire.SizeVarint(uint64(len(content)))
	b := protowire.AppendTag(make([]byte, 0, head+len(content)), itemsField, protowire.BytesType)
	b = protowire.AppendBytes(b, content)
	e.last.Store(&encodedState{state, b})
	return b, nil
}

// Items returns the items of a list, without those that are nil.
func Items[O, I any](all []O, item func(O) *I) []*I {
	items := make([]*I, 0, len(all))
	for _, o := range all {
		if i := item(o); i != nil {
			items = append(items, i)
		}
	}
	return items
}

// EncodedSandboxes returns the encoded items of a list of sandboxes. Callers must not change them.
func (o *Index) EncodedSandboxes(f *runtimeapi.PodSandboxFilter) ([]byte, error) {
	return encodeItems(&o.listedSandboxes, o.AllSandboxes(), func(s *Sandbox) ([]byte, error) { return s.Encoded(f) })
}

// EncodedContainers is EncodedSandboxes for containers.
func (o *Index) EncodedContainers(f *runtimeapi.ContainerFilter) ([]byte, error) {
	return encodeItems(&o.listedContainers, o.AllContainers(), func(c *Container) ([]byte, error) { return c.Encoded(f) })
}

// encodedList caches the last list: the kubelet asks every second, and little changes.
type encodedList struct {
	items  [][]byte
	joined []byte
}

// encodeItems joins the encoded items. encoded returns nil for an item outside the list, and the
// same bytes, not a copy, for an item without a change.
func encodeItems[O any](kept *atomic.Pointer[encodedList], all []O, encoded func(O) ([]byte, error)) ([]byte, error) {
	items := make([][]byte, 0, len(all))
	for _, o := range all {
		item, err := encoded(o)
		if err != nil {
			return nil, err
		}
		if len(item) > 0 {
			items = append(items, item)
		}
	}
	last := kept.Load()
	if last == nil || !slices.EqualFunc(last.items, items, func(a, b []byte) bool { return &a[0] == &b[0] }) {
		last = &encodedList{items, slices.Concat(items...)}
		kept.Store(last)
	}
	return last.joined, nil
}
