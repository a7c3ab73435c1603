package remote

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// known is what a daemon has, as far as this berth was told: its last lists, and
// what calls of this berth's clients did since. All methods may be called at any
// time from any goroutine.
type known struct {
	mu sync.Mutex
	// listed is what the last lists have, sandboxes and containers say when those came.
	listed                state
	sandboxes, containers page
	// changes are those that a list may not have in it yet.
	changes []change
	// number is that of the last change, turn that of the last list asked for.
	number, turn uint64
	// now is all that is known, nil until it is worked out anew.
	now *state
	// handlerOf are the handlers of ours of sandboxes that would count as another's by
	// what the daemon says, by id.
	handlerOf map[string]string
}

// page is about the last list of one kind.
type page struct {
	at time.Time
	mark
	// failed is why the daemon could not tell a newer one, empty if it did not fail.
	failed string
}

type mark struct {
	// upTo is the number of the last change that is certainly in the list.
	upTo uint64
	turn uint64
}

// change is what a call did to one sandbox or container.
type change struct {
	number uint64
	// Exactly one of the first two is set for what was made; else id says what
	// changed.
	sandbox   *runtimeapi.PodSandbox
	container *runtimeapi.Container
	id        string
	kind      kind
	// handler is the one of ours of a sandbox that was made, empty if that follows
	// from what the daemon says.
	handler string
}

type kind int

const (
	madeSandbox kind = iota
	madeContainer
	startedContainer
	endedContainer
	removedContainer
	stoppedSandbox
	removedSandbox
)

// mark is taken before a list is asked for.
func (k *known) mark() mark {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.turn++
	return mark{k.number, k.turn}
}

// take takes over a list that was asked for at m. It reports whether something else is known since.
func (k *known) take(p *page, f frame, m mark, now time.Time) (differs bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if m.turn < p.turn {
		return false // one that was asked for later was faster
	}
	differs = k.replace(p, f) || p.at.IsZero()
	p.at, p.mark, p.failed = now, m, ""
	oldest, changes := min(k.sandboxes.upTo, k.containers.upTo), len(k.changes)
	k.changes = slices.DeleteFunc(k.changes, func(c change) bool { return c.number <= oldest })
	if differs || changes > 0 { // some of them may be in the list now
		k.now = nil
	}
	return differs || len(k.changes) < changes
}

// replace takes over the items of a list, and reports whether they are others than before, in any
// order: daemons keep them, and their labels, in maps. mu is held.
func (k *known) replace(p *page, f frame) bool {
	next := k.listed
	var err error
	if p == &k.sandboxes {
		next.sandboxes, err = sandboxesOf(f)
	} else {
		next.containers, err = containersOf(f)
	}
	if err != nil { // a list that is sound can be read
		return false
	}
	same := maps.EqualFunc(k.listed.sandboxes, next.sandboxes, func(a, b *runtimeapi.PodSandbox) bool { return proto.Equal(a, b) }) &&
		maps.EqualFunc(k.listed.containers, next.containers, func(a, b *runtimeapi.Container) bool { return proto.Equal(a, b) })
	k.listed = next
	return !same
}

func sandboxesOf(f frame) (map[string]*runtimeapi.PodSandbox, error) {
	var l runtimeapi.ListPodSandboxResponse
	err := proto.Unmarshal(f, &l)
	return byID(l.GetItems()), err
}

func containersOf(f frame) (map[string]*runtimeapi.Container, error) {
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

// fail takes over that a daemon which answers could not tell a list.
func (k *known) fail(p *page, why string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p.failed = why
}

// tolerated is how long a daemon may fail to list: it may do so once.
const tolerated = 10 * time.Second

// trouble is why a daemon has failed to list for long, empty if it has not. What
// is listed in its place does not show what ends by itself.
func (k *known) trouble(now time.Time) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range []*page{&k.sandboxes, &k.containers} {
		if p.failed != "" && now.Sub(p.at) > tolerated {
			return p.failed
		}
	}
	return ""
}

// note takes over what a call did.
func (k *known) note(c change) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.number++
	k.now = nil
	c.number = k.number
	k.changes = append(k.changes, c)
	switch {
	case c.kind == madeSandbox && c.handler != "":
		k.assign(c.sandbox.GetId(), c.handler)
	case c.kind == removedSandbox:
		delete(k.handlerOf, c.id)
	}
}

// age is how old the older of both lists is.
func (k *known) age(now time.Time) (time.Duration, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.sandboxes.at.IsZero() || k.containers.at.IsZero() {
		return 0, false
	}
	return max(now.Sub(k.sandboxes.at), now.Sub(k.containers.at)), true
}

// state is sandboxes and containers by their ids.
type state struct {
	sandboxes  map[string]*runtimeapi.PodSandbox
	containers map[string]*runtimeapi.Container
}

// state is all that is known. It is shared, and must not be changed. A container whose sandbox is not
// known is left out.
func (k *known) state() *state {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all()
}

// all is state; mu is held.
func (k *known) all() *state {
	if k.now != nil {
		return k.now
	}
	s := &state{sandboxes: map[string]*runtimeapi.PodSandbox{}, containers: map[string]*runtimeapi.Container{}}
	maps.Copy(s.sandboxes, k.listed.sandboxes)
	maps.Copy(s.containers, k.listed.containers)
	for _, c := range k.changes {
		s.apply(c, c.number > k.sandboxes.upTo, c.number > k.containers.upTo)
	}
	maps.DeleteFunc(s.containers, func(_ string, c *runtimeapi.Container) bool { return s.sandboxes[c.GetPodSandboxId()] == nil })
	k.now = s
	return s
}

// apply does to the state what a call did, as far as the lists cannot have it.
func (s *state) apply(c change, toSandboxes, toContainers bool) {
	if toSandboxes {
		switch c.kind {
		case madeSandbox:
			s.sandboxes[c.sandbox.GetId()] = cmp.Or(s.sandboxes[c.sandbox.GetId()], c.sandbox)
		case stoppedSandbox:
			if p := s.sandboxes[c.id]; p != nil {
				p = proto.CloneOf(p)
				p.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
				s.sandboxes[c.id] = p
			}
		case removedSandbox:
			delete(s.sandboxes, c.id)
		}
	}
	if !toContainers {
		return
	}
	switch c.kind {
	case madeContainer:
		s.containers[c.container.GetId()] = cmp.Or(s.containers[c.container.GetId()], c.container)
	case startedContainer:
		if t := s.containers[c.id]; t.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
			s.turn(t, runtimeapi.ContainerState_CONTAINER_RUNNING)
		}
	case endedContainer:
		s.turn(s.containers[c.id], runtimeapi.ContainerState_CONTAINER_EXITED)
	case removedContainer:
		delete(s.containers, c.id)
	case stoppedSandbox:
		for _, t := range s.containers {
			if t.GetPodSandboxId() == c.id {
				s.turn(t, runtimeapi.ContainerState_CONTAINER_EXITED)
			}
		}
	case removedSandbox:
		maps.DeleteFunc(s.containers, func(_ string, t *runtimeapi.Container) bool { return t.GetPodSandboxId() == c.id })
	}
}

// turn puts a container, if there is one, in another state.
func (s *state) turn(c *runtimeapi.Container, to runtimeapi.ContainerState) {
	if c != nil {
		c = proto.CloneOf(c)
		c.State = to
		s.containers[c.GetId()] = c
	}
}

// live says whether a sandbox is READY as far as is known.
func (k *known) live(id string) bool {
	p := k.state().sandboxes[id]
	return p != nil && p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
}

// save puts what is known into a state file: the lists with the changes since.
func (k *known) save(to *saved) error {
	to.HandlerOf = k.stay()
	s := k.state()
	k.mu.Lock()
	to.Listed = older(k.sandboxes.at, k.containers.at)
	k.mu.Unlock()
	var err error
	if to.Sandboxes, err = proto.Marshal(&runtimeapi.ListPodSandboxResponse{Items: slices.Collect(maps.Values(s.sandboxes))}); err != nil {
		return err
	}
	to.Containers, err = proto.Marshal(&runtimeapi.ListContainersResponse{Containers: slices.Collect(maps.Values(s.containers))})
	return err
}

// older is the time that is longer ago. A zero one is the longest.
func older(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// load takes over what a state file has.
func (k *known) load(from *saved) error {
	sandboxes, err := sandboxesOf(from.Sandboxes)
	if err != nil {
		return err
	}
	containers, err := containersOf(from.Containers)
	if err != nil {
		return err
	}
	k.listed, k.handlerOf = state{sandboxes, containers}, from.HandlerOf
	k.sandboxes.at, k.containers.at = from.Listed, from.Listed
	return nil
}

// selectSandboxes are those that a filter selects, the newest first. Pure.
func (s *state) selectSandboxes(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var chosen []*runtimeapi.PodSandbox
	for _, id := range slices.Sorted(maps.Keys(s.sandboxes)) {
		p := s.sandboxes[id]
		if strings.HasPrefix(id, f.GetId()) && (f.GetState() == nil || f.GetState().GetState() == p.GetState()) &&
			contains(p.GetLabels(), f.GetLabelSelector()) {
			chosen = append(chosen, p)
		}
	}
	slices.SortStableFunc(chosen, func(a, b *runtimeapi.PodSandbox) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	return chosen
}

// selectContainers are those that a filter selects, the newest first. Pure.
func (s *state) selectContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var chosen []*runtimeapi.Container
	for _, id := range slices.Sorted(maps.Keys(s.containers)) {
		c := s.containers[id]
		if strings.HasPrefix(id, f.GetId()) && strings.HasPrefix(c.GetPodSandboxId(), f.GetPodSandboxId()) &&
			(f.GetState() == nil || f.GetState().GetState() == c.GetState()) && contains(c.GetLabels(), f.GetLabelSelector()) {
			chosen = append(chosen, c)
		}
	}
	slices.SortStableFunc(chosen, func(a, b *runtimeapi.Container) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	return chosen
}

func contains(labels, wanted map[string]string) bool {
	for key, value := range wanted {
		if got, there := labels[key]; !there || got != value {
			return false
		}
	}
	return true
}

// attached is a list of containers without those whose sandbox is not known.
func (k *known) attached(f frame) frame {
	there := k.state().sandboxes
	return without(f, func(item []byte) bool { return there[text(item, containerSandboxField)] == nil })
}

// assign keeps the handler of a sandbox. It needs mu, unless k is not shared yet.
func (k *known) assign(id, name string) {
	if k.handlerOf == nil {
		k.handlerOf = map[string]string{}
	}
	k.handlerOf[id] = name
}

// assigned is the handler of a sandbox, empty if that follows from what the daemon says.
func (k *known) assigned(id string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.handlerOf[id]
}

// assignMissing assigns handlers to sandboxes that have none.
func (k *known) assignMissing(handlers map[string]string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, name := range handlers {
		if k.handlerOf[id] == "" {
			k.assign(id, name)
		}
	}
}

// stay are the handlers of sandboxes that are still there; others are dropped.
func (k *known) stay() map[string]string {
	k.mu.Lock()
	defer k.mu.Unlock()
	there := k.all().sandboxes
	maps.DeleteFunc(k.handlerOf, func(id, _ string) bool { return there[id] == nil })
	return maps.Clone(k.handlerOf)
}
