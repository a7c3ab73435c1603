// Package lastknown keeps what another daemon had when it was asked last: its pods, its
// images, and on disk both, for when it does not answer.
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

// Pods is what a daemon has, as far as this berth was told: its last lists, and
// what calls of this berth's clients did since. All methods may be called at any
// time from any goroutine.
type Pods struct {
	Mu sync.Mutex
	// listed is what the last lists have, sandboxes and containers say when those came.
	listed                State
	Sandboxes, Containers Page
	// changes are those that a list may not have in it yet.
	changes []Change
	// number is that of the last change, turn that of the last list asked for.
	number, turn uint64
	// now is all that is known, nil until it is worked out anew.
	now *State
	// HandlerOf are the handlers of ours of sandboxes that would count as another's by
	// what the daemon says, by id.
	HandlerOf map[string]string
}

// Page is about the last list of one kind.
type Page struct {
	At time.Time
	Mark
	// failed is why the daemon could not tell a newer one, empty if it did not fail.
	failed string
}

// Mark is the moment at which a list was asked for.
type Mark struct {
	// upTo is the number of the last change that is certainly in the list.
	upTo uint64
	turn uint64
}

// Change is what a call did to one sandbox or container.
type Change struct {
	number uint64
	// Exactly one of the first two is set for what was made; else id says what
	// changed.
	Sandbox   *runtimeapi.PodSandbox
	Container *runtimeapi.Container
	ID        string
	Kind      kind
	// Handler is the one of ours of a sandbox that was made, empty if that follows
	// from what the daemon says.
	Handler string
}

type kind int

// What a call did.
const (
	MadeSandbox kind = iota
	MadeContainer
	StartedContainer
	EndedContainer
	RemovedContainer
	StoppedSandbox
	RemovedSandbox
)

// Mark is taken before a list is asked for.
func (k *Pods) Mark() Mark {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.turn++
	return Mark{k.number, k.turn}
}

// Take takes over a list that was asked for at m. It reports whether something else is known since.
func (k *Pods) Take(p *Page, f wire.Frame, m Mark, now time.Time) (differs bool) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if m.turn < p.turn {
		return false // one that was asked for later was faster
	}
	differs = k.replace(p, f) || p.At.IsZero()
	p.At, p.Mark, p.failed = now, m, ""
	oldest, changes := min(k.Sandboxes.upTo, k.Containers.upTo), len(k.changes)
	k.changes = slices.DeleteFunc(k.changes, func(c Change) bool { return c.number <= oldest })
	if differs || changes > 0 { // some of them may be in the list now
		k.now = nil
	}
	return differs || len(k.changes) < changes
}

// replace takes over the items of a list, and reports whether they are others than before, in any
// order: daemons keep them, and their labels, in maps. mu is held.
func (k *Pods) replace(p *Page, f wire.Frame) bool {
	next := k.listed
	var err error
	if p == &k.Sandboxes {
		next.Sandboxes, err = sandboxesOf(f)
	} else {
		next.Containers, err = containersOf(f)
	}
	if err != nil { // a list that is sound can be read
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

// Fail takes over that a daemon which answers could not tell a list.
func (k *Pods) Fail(p *Page, why string) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	p.failed = why
}

// Tolerated is how long a daemon may fail to list: it may do so once.
const Tolerated = 10 * time.Second

// Trouble is why a daemon has failed to list for long, empty if it has not. What
// is listed in its place does not show what ends by itself.
func (k *Pods) Trouble(now time.Time) string {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	for _, p := range []*Page{&k.Sandboxes, &k.Containers} {
		if p.failed != "" && now.Sub(p.At) > Tolerated {
			return p.failed
		}
	}
	return ""
}

// Note takes over what a call did.
func (k *Pods) Note(c Change) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.number++
	k.now = nil
	c.number = k.number
	k.changes = append(k.changes, c)
	switch {
	case c.Kind == MadeSandbox && c.Handler != "":
		k.Assign(c.Sandbox.GetId(), c.Handler)
	case c.Kind == RemovedSandbox:
		delete(k.HandlerOf, c.ID)
	}
}

// Age is how old the older of both lists is.
func (k *Pods) Age(now time.Time) (time.Duration, bool) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	if k.Sandboxes.At.IsZero() || k.Containers.At.IsZero() {
		return 0, false
	}
	return max(now.Sub(k.Sandboxes.At), now.Sub(k.Containers.At)), true
}

// State is sandboxes and containers by their ids.
type State struct {
	Sandboxes  map[string]*runtimeapi.PodSandbox
	Containers map[string]*runtimeapi.Container
}

// State is all that is known. It is shared, and must not be changed. A container whose sandbox is not
// known is left out.
func (k *Pods) State() *State {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	return k.all()
}

// all is state; mu is held.
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

// apply does to the state what a call did, as far as the lists cannot have it.
func (s *State) apply(c Change, toSandboxes, toContainers bool) {
	if toSandboxes {
		switch c.Kind {
		case MadeSandbox:
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
	case MadeContainer:
		s.Containers[c.Container.GetId()] = cmp.Or(s.Containers[c.Container.GetId()], c.Container)
	case StartedContainer:
		if t := s.Containers[c.ID]; t.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
			s.turn(t, runtimeapi.ContainerState_CONTAINER_RUNNING)
		}
	case EndedContainer:
		s.turn(s.Containers[c.ID], runtimeapi.ContainerState_CONTAINER_EXITED)
	case RemovedContainer:
		delete(s.Containers, c.ID)
	case StoppedSandbox:
		for _, t := range s.Containers {
			if t.GetPodSandboxId() == c.ID {
				s.turn(t, runtimeapi.ContainerState_CONTAINER_EXITED)
			}
		}
	case RemovedSandbox:
		maps.DeleteFunc(s.Containers, func(_ string, t *runtimeapi.Container) bool { return t.GetPodSandboxId() == c.ID })
	}
}

// turn puts a container, if there is one, in another state.
func (s *State) turn(c *runtimeapi.Container, to runtimeapi.ContainerState) {
	if c != nil {
		c = proto.CloneOf(c)
		c.State = to
		s.Containers[c.GetId()] = c
	}
}

// Live says whether a sandbox is READY as far as is known.
func (k *Pods) Live(id string) bool {
	p := k.State().Sandboxes[id]
	return p != nil && p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
}

// save puts what is known into a state file: the lists with the changes since.
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

// load takes over what a state file has.
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

// SelectSandboxes are those that a filter selects, the newest first. Pure.
func (s *State) SelectSandboxes(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	return selected(s.Sandboxes, f, func(p *runtimeapi.PodSandbox) bool {
		return f.GetState() == nil || f.GetState().GetState() == p.GetState()
	})
}

// SelectContainers are those that a filter selects, the newest first. Pure.
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

// Attached is a list of containers without those whose sandbox is not known.
func (k *Pods) Attached(f wire.Frame) wire.Frame {
	there := k.State().Sandboxes
	return wire.Without(f, func(item []byte) bool { return there[wire.Text(item, wire.ContainerSandboxField)] == nil })
}

// Assign keeps the handler of a sandbox. It needs mu, unless k is not shared yet.
func (k *Pods) Assign(id, name string) {
	if k.HandlerOf == nil {
		k.HandlerOf = map[string]string{}
	}
	k.HandlerOf[id] = name
}

// Assigned is the handler of a sandbox, empty if that follows from what the daemon says.
func (k *Pods) Assigned(id string) string {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	return k.HandlerOf[id]
}

// AssignMissing assigns handlers to sandboxes that have none.
func (k *Pods) AssignMissing(handlers map[string]string) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	for id, name := range handlers {
		if k.HandlerOf[id] == "" {
			k.Assign(id, name)
		}
	}
}
