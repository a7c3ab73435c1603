// Package lastknown keeps the last known pods and images of another daemon, also on disk, for the
// times when the daemon does not answer.
package lastknown

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/wire"
)

// Pods contains the last known sandboxes and containers of a daemon: its last lists, and later
// changes by calls of this berth's clients. All methods may be called at any time from any
// goroutine.
type Pods struct {
	Mu sync.Mutex
	// listed has the content of the last lists, which Sandboxes and Containers describe.
	listed                State
	Sandboxes, Containers Page
	// changes are the changes that the last lists may not contain yet.
	changes []Change
	// number is the number of the last change, request that of the last requested list.
	number, request uint64
	// now is the merged state, nil until it is computed again.
	now *State
	// HandlerOf has, by ID, the handlers of sandboxes that the daemon's answers may map to another
	// handler.
	HandlerOf map[string]string
}

// Page describes the last list of one kind.
type Page struct {
	At time.Time
	Mark
	// failing is when the first newer list failed, failed why a list failed more than Tolerated later.
	failing time.Time
	failed  string
}

// Mark is the moment at which a list was requested.
type Mark struct {
	// upTo is the number of the last change that the list certainly contains.
	upTo    uint64
	request uint64
}

// Change is a change of one sandbox or container by a call.
type Change struct {
	number uint64
	// Sandbox or Container is set for a created object; otherwise ID is that of the changed object.
	Sandbox   *runtimeapi.PodSandbox
	Container *runtimeapi.Container
	ID        string
	Kind      kind
	// Handler is the handler of a created sandbox, empty if it follows from the daemon's answers.
	Handler string
}

type kind int

// The kinds of changes.
const (
	CreatedSandbox kind = iota
	CreatedContainer
	StartedContainer
	StoppedContainer
	RemovedContainer
	StoppedSandbox
	RemovedSandbox
)

// Mark returns the Mark of a list; it must be called before the list is requested.
func (k *Pods) Mark() Mark {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.request++
	return Mark{k.number, k.request}
}

// Take stores in p a list that was requested at m, and reports whether the known state has changed.
func (k *Pods) Take(p *Page, f wire.Frame, m Mark, now time.Time) (differs bool) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if m.request < p.request {
		return false // a later request was answered first
	}
	differs = k.replace(p, f) || p.At.IsZero()
	p.At, p.Mark, p.failing, p.failed = now, m, time.Time{}, ""
	oldest, changes := min(k.Sandboxes.upTo, k.Containers.upTo), len(k.changes)
	k.changes = slices.DeleteFunc(k.changes, func(c Change) bool { return c.number <= oldest })
	if differs || changes > 0 { // some of the changes may be in the list now
		k.now = nil
	}
	return differs || len(k.changes) < changes
}

// replace stores the items of a list. It reports whether they differ from the former items. Their
// order does not count, because daemons list in no fixed order. Mu is held.
func (k *Pods) replace(p *Page, f wire.Frame) bool {
	next := k.listed
	var err error
	if p == &k.Sandboxes {
		next.Sandboxes, err = sandboxesOf(f)
	} else {
		next.Containers, err = containersOf(f)
	}
	if err != nil { // wire.WellFormed lists can be decoded
		return false
	}
	same := maps.EqualFunc(k.listed.Sandboxes, next.Sandboxes, func(a, b *runtimeapi.PodSandbox) bool { return proto.Equal(a, b) }) &&
		maps.EqualFunc(k.listed.Containers, next.Containers, func(a, b *runtimeapi.Container) bool { return proto.Equal(a, b) })
	k.listed = next
	return !same
}

func sandboxesOf(f wire.Frame) (map[string]*runtimeapi.PodSandbox, error) {
	var l runtimeapi.ListPodSandboxResponse
	err := proto.Unmarshal(f, &l)
	return byID(l.GetItems()), err
}

func containersOf(f wire.Frame) (map[string]*runtimeapi.Container, error) {
	var l runtimeapi.ListContainersResponse
	err := proto.Unmarshal(f, &l)
	return byID(l.GetContainers()), err
}

func byID[T interface{ GetId() string }](items []T) map[string]T {
	all := make(map[string]T, len(items))
	for _, one := range items {
		if one.GetId() != "" {
			all[one.GetId()] = one
		}
	}
	return all
}

// Tolerated is how long lists may fail without effect.
const Tolerated = 10 * time.Second

// Fail records why a daemon that answers failed to list.
func (k *Pods) Fail(p *Page, why string, now time.Time) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if p.failing.IsZero() {
		p.failing = now
	}
	if now.Sub(p.failing) > Tolerated {
		p.failed = why
	}
}

// ListFailure returns why lists have failed for longer than Tolerated, otherwise "". The last known
// lists may then show exited containers as running.
func (k *Pods) ListFailure() string {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	return cmp.Or(k.Sandboxes.failed, k.Containers.failed)
}

// Note records a change made by a call.
func (k *Pods) Note(c Change) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.number++
	k.now = nil
	c.number = k.number
	k.changes = append(k.changes, c)
	switch {
	case c.Kind == CreatedSandbox && c.Handler != "":
		k.Assign(c.Sandbox.GetId(), c.Handler)
	case c.Kind == RemovedSandbox:
		delete(k.HandlerOf, c.ID)
	}
}

// Age returns the age of the older of both lists, false if one is missing.
func (k *Pods) Age(now time.Time) (time.Duration, bool) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if k.Sandboxes.At.IsZero() || k.Containers.At.IsZero() {
		return 0, false
	}
	return max(now.Sub(k.Sandboxes.At), now.Sub(k.Containers.At)), true
}

// State contains sandboxes and containers by ID.
type State struct {
	Sandboxes  map[string]*runtimeapi.PodSandbox
	Containers map[string]*runtimeapi.Container
}

// State returns the known state. It is shared, and must not be changed. A container without a known
// sandbox is left out.
func (k *Pods) State() *State {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	return k.all()
}

// all is State; Mu is held.
func (k *Pods) all() *State {
	if k.now != nil {
		return k.now
	}
	s := &State{Sandboxes: map[string]*runtimeapi.PodSandbox{}, Containers: map[string]*runtimeapi.Container{}}
	maps.Copy(s.Sandboxes, k.listed.Sandboxes)
	maps.Copy(s.Containers, k.listed.Containers)
	for _, c := range k.changes {
		s.apply(c, c.number > k.Sandboxes.upTo, c.number > k.Containers.upTo)
	}
	maps.DeleteFunc(s.Containers, func(_ string, c *runtimeapi.Container) bool { return s.Sandboxes[c.GetPodSandboxId()] == nil })
	k.now = s
	return s
}

// apply applies a change to the sandboxes if toSandboxes is set, and to the containers if
// toContainers is set.
func (s *State) apply(c Change, toSandboxes, toContainers bool) {
	if toSandboxes {
		switch c.Kind {
		case CreatedSandbox:
			s.Sandboxes[c.Sandbox.GetId()] = cmp.Or(s.Sandboxes[c.Sandbox.GetId()], c.Sandbox)
		case StoppedSandbox:
			if p := s.Sandboxes[c.ID]; p != nil {
				p = proto.CloneOf(p)
				p.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
				s.Sandboxes[c.ID] = p
			}
		case RemovedSandbox:
			delete(s.Sandboxes, c.ID)
		}
	}
	if !toContainers {
		return
	}
	switch c.Kind {
	case CreatedContainer:
		s.Containers[c.Container.GetId()] = cmp.Or(s.Containers[c.Container.GetId()], c.Container)
	case StartedContainer:
		if t := s.Containers[c.ID]; t.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
			s.setState(t, runtimeapi.ContainerState_CONTAINER_RUNNING)
		}
	case StoppedContainer:
		s.setState(s.Containers[c.ID], runtimeapi.ContainerState_CONTAINER_EXITED)
	case RemovedContainer:
		delete(s.Containers, c.ID)
	case StoppedSandbox:
		for _, t := range s.Containers {
			if t.GetPodSandboxId() == c.ID {
				s.setState(t, runtimeapi.ContainerState_CONTAINER_EXITED)
			}
		}
	case RemovedSandbox:
		maps.DeleteFunc(s.Containers, func(_ string, t *runtimeapi.Container) bool { return t.GetPodSandboxId() == c.ID })
	}
}

// setState changes the state of a container, if there is one.
func (s *State) setState(c *runtimeapi.Container, to runtimeapi.ContainerState) {
	if c != nil {
		c = proto.CloneOf(c)
		c.State = to
		s.Containers[c.GetId()] = c
	}
}

// Live reports whether a sandbox is READY in the known state.
func (k *Pods) Live(id string) bool {
	p := k.State().Sandboxes[id]
	return p != nil && p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
}

// save copies the lists, with later changes, into the content of a state file.
func (k *Pods) save(to *saved) error {
	k.Mu.Lock()
	s := k.all()
	maps.DeleteFunc(k.HandlerOf, func(id, _ string) bool { return s.Sandboxes[id] == nil })
	to.HandlerOf = maps.Clone(k.HandlerOf)
	to.Listed = slices.MinFunc([]time.Time{k.Sandboxes.At, k.Containers.At}, time.Time.Compare)
	k.Mu.Unlock()
	var err error
	if to.Sandboxes, err = proto.Marshal(&runtimeapi.ListPodSandboxResponse{Items: slices.Collect(maps.Values(s.Sandboxes))}); err != nil {
		return err
	}
	to.Containers, err = proto.Marshal(&runtimeapi.ListContainersResponse{Containers: slices.Collect(maps.Values(s.Containers))})
	return err
}

// load restores the content of a state file.
func (k *Pods) load(from *saved) error {
	sandboxes, err := sandboxesOf(from.Sandboxes)
	if err != nil {
		return err
	}
	containers, err := containersOf(from.Containers)
	if err != nil {
		return err
	}
	k.listed, k.HandlerOf = State{sandboxes, containers}, from.HandlerOf
	k.Sandboxes.At, k.Containers.At = from.Listed, from.Listed
	return nil
}

// SelectSandboxes returns the sandboxes that a filter selects, the newest first. Pure.
func (s *State) SelectSandboxes(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	return selected(s.Sandboxes, f, func(p *runtimeapi.PodSandbox) bool {
		return f.GetState() == nil || f.GetState().GetState() == p.GetState()
	})
}

// SelectContainers returns the containers that a filter selects, the newest first. Pure.
func (s *State) SelectContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	return selected(s.Containers, f, func(c *runtimeapi.Container) bool {
		return strings.HasPrefix(c.GetPodSandboxId(), f.GetPodSandboxId()) && (f.GetState() == nil || f.GetState().GetState() == c.GetState())
	})
}

type filter interface {
	GetId() string
	GetLabelSelector() map[string]string
}

type item interface {
	GetId() string
	GetLabels() map[string]string
	GetCreatedAt() int64
}

func selected[T item](all map[string]T, f filter, also func(T) bool) []T {
	var chosen []T
	wanted := labels.SelectorFromSet(f.GetLabelSelector())
	for id, one := range all {
		if strings.HasPrefix(id, f.GetId()) && wanted.Matches(labels.Set(one.GetLabels())) && also(one) {
			chosen = append(chosen, one)
		}
	}
	slices.SortFunc(chosen, func(a, b T) int {
		return cmp.Or(cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()), cmp.Compare(a.GetId(), b.GetId()))
	})
	return chosen
}

// WithSandbox returns a list of containers without those of unknown sandboxes.
func (k *Pods) WithSandbox(f wire.Frame) wire.Frame {
	there := k.State().Sandboxes
	return wire.Without(f, func(item []byte) bool { return there[wire.Text(item, wire.ContainerSandboxField)] == nil })
}

// Assign stores the handler of a sandbox. Mu must be held, unless k is not shared yet.
func (k *Pods) Assign(id, name string) {
	if k.HandlerOf == nil {
		k.HandlerOf = map[string]string{}
	}
	k.HandlerOf[id] = name
}

// Assigned returns the stored handler of a sandbox, empty if it follows from the daemon's answers.
func (k *Pods) Assigned(id string) string {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	return k.HandlerOf[id]
}

// AssignMissing stores handlers for sandboxes without a stored one.
func (k *Pods) AssignMissing(handlers map[string]string) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	for id, name := range handlers {
		if k.HandlerOf[id] == "" {
			k.Assign(id, name)
		}
	}
}
