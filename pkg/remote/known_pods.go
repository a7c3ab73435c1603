package remote

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/log"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// known is what a daemon has, as far as this berth was told: its last lists, and
// what calls of this berth's clients did since. All methods may be called at any
// time from any goroutine.
type known struct {
	mu sync.Mutex
	// sandboxes and containers are encoded lists.
	sandboxes, containers page
	// changes are those that a list may not have in it yet.
	changes []change
	// number is that of the last change, turn that of the last list asked for.
	number, turn uint64
	// ready are the sandboxes that are READY, nil until somebody asks anew.
	ready map[string]bool
	// edition counts what may have changed possessions; had are those of one.
	edition, hadIn uint64
	had            []possession
	// pins are the handlers of ours of sandboxes that would count as another's by
	// what the daemon says, by id; pinTurn counts the changes of them.
	pins    map[string]string
	pinTurn uint64
}

// page is a list as it came.
type page struct {
	frame frame
	at    time.Time
	mark
	// failed is why the daemon could not tell a newer one, empty if it did not fail.
	failed string
}

// mark is when a list was asked for.
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
	// pin is the handler of ours of a sandbox that was made, empty if that follows
	// from what the daemon says.
	pin string
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
	if differs = p.at.IsZero() || !k.same(p, f); differs {
		p.frame = f
	}
	p.at, p.mark, p.failed = now, m, ""
	oldest, changes := min(k.sandboxes.upTo, k.containers.upTo), len(k.changes)
	k.changes = slices.DeleteFunc(k.changes, func(c change) bool { return c.number <= oldest })
	if differs || changes > 0 { // some of them may be in the list now
		k.edition++
		k.ready = nil
	}
	return differs || len(k.changes) < changes
}

// same reports whether a list has the items of a page, in any order: daemons keep them, and
// their labels, in maps. mu is held.
func (k *known) same(p *page, f frame) bool {
	if p == &k.sandboxes {
		var was, now runtimeapi.ListPodSandboxResponse
		return proto.Unmarshal(p.frame, &was) == nil && proto.Unmarshal(f, &now) == nil && sameItems(was.GetItems(), now.GetItems())
	}
	var was, now runtimeapi.ListContainersResponse
	return proto.Unmarshal(p.frame, &was) == nil && proto.Unmarshal(f, &now) == nil && sameItems(was.GetContainers(), now.GetContainers())
}

func sameItems[T interface {
	proto.Message
	GetId() string
}](a, b []T) bool {
	byID := map[string]T{}
	for _, one := range a {
		byID[one.GetId()] = one
	}
	return len(a) == len(b) && !slices.ContainsFunc(b, func(one T) bool {
		was, there := byID[one.GetId()]
		return !there || !proto.Equal(was, one)
	})
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
	k.edition++
	k.ready = nil
	c.number = k.number
	k.changes = append(k.changes, c)
	switch {
	case c.kind == madeSandbox && c.pin != "":
		k.pin(c.sandbox.GetId(), c.pin)
	case c.kind == removedSandbox:
		k.unpin(c.id)
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

// state is a decoded copy of all that is known.
type state struct {
	sandboxes  map[string]*runtimeapi.PodSandbox
	containers map[string]*runtimeapi.Container
}

// state decodes what is known. A container whose sandbox is not known is left out.
func (k *known) state() (*state, error) {
	k.mu.Lock()
	sandboxes, containers, changes := k.sandboxes, k.containers, slices.Clone(k.changes)
	k.mu.Unlock()

	var ps runtimeapi.ListPodSandboxResponse
	var cs runtimeapi.ListContainersResponse
	if err := proto.Unmarshal(sandboxes.frame, &ps); err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(containers.frame, &cs); err != nil {
		return nil, err
	}
	s := &state{sandboxes: map[string]*runtimeapi.PodSandbox{}, containers: map[string]*runtimeapi.Container{}}
	for _, p := range ps.GetItems() {
		s.sandboxes[p.GetId()] = p
	}
	for _, c := range cs.GetContainers() {
		s.containers[c.GetId()] = c
	}
	for _, c := range changes {
		s.apply(c, c.number > sandboxes.upTo, c.number > containers.upTo)
	}
	maps.DeleteFunc(s.containers, func(_ string, c *runtimeapi.Container) bool { return s.sandboxes[c.GetPodSandboxId()] == nil })
	return s, nil
}

// apply does to the state what a call did, as far as the lists cannot have it.
func (s *state) apply(c change, toSandboxes, toContainers bool) {
	if toSandboxes {
		switch c.kind {
		case madeSandbox:
			if s.sandboxes[c.sandbox.GetId()] == nil {
				s.sandboxes[c.sandbox.GetId()] = proto.CloneOf(c.sandbox)
			}
		case stoppedSandbox:
			if p := s.sandboxes[c.id]; p != nil {
				p.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
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
		if s.containers[c.container.GetId()] == nil {
			s.containers[c.container.GetId()] = proto.CloneOf(c.container)
		}
	case startedContainer:
		if t := s.containers[c.id]; t != nil && t.GetState() == runtimeapi.ContainerState_CONTAINER_CREATED {
			t.State = runtimeapi.ContainerState_CONTAINER_RUNNING
		}
	case endedContainer:
		if t := s.containers[c.id]; t != nil {
			t.State = runtimeapi.ContainerState_CONTAINER_EXITED
		}
	case removedContainer:
		delete(s.containers, c.id)
	case stoppedSandbox:
		for _, t := range s.containers {
			if t.GetPodSandboxId() == c.id {
				t.State = runtimeapi.ContainerState_CONTAINER_EXITED
			}
		}
	case removedSandbox:
		maps.DeleteFunc(s.containers, func(_ string, t *runtimeapi.Container) bool { return t.GetPodSandboxId() == c.id })
	}
}

// live says whether a sandbox is READY as far as is known.
func (k *known) live(id string) bool {
	k.mu.Lock()
	ready, edition := k.ready, k.edition
	k.mu.Unlock()
	if ready == nil {
		ready = map[string]bool{}
		if s, err := k.state(); err == nil {
			for id, p := range s.sandboxes {
				if p.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
					ready[id] = true
				}
			}
		}
		k.mu.Lock()
		if edition == k.edition {
			k.ready = ready
		}
		k.mu.Unlock()
	}
	return ready[id]
}

// possession is one sandbox with its containers, by id. handler is the daemon's
// name, pin ours if it does not follow from that.
type possession struct {
	id, handler, pin string
	containers       []string
}

// edited is the number of the edition of what is known.
func (k *known) edited() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.edition
}

// possessions are all sandboxes that are known, without decoding more than ids.
// They are shared.
func (k *known) possessions() []possession {
	k.mu.Lock()
	sandboxes, containers, changes, edition := k.sandboxes, k.containers, slices.Clone(k.changes), k.edition
	had, fresh, pins := k.had, k.hadIn == k.edition && k.had != nil, maps.Clone(k.pins)
	k.mu.Unlock()
	if fresh {
		return had
	}
	had = possessionsOf(sandboxes, containers, changes, pins)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.edition == edition {
		k.had, k.hadIn = had, edition
	}
	return had
}

// possessionsOf are what lists have, as changed since. Pure.
func possessionsOf(sandboxes, containers page, changes []change, pins map[string]string) []possession {
	all := []possession{}
	place := map[string]int{}
	add := func(id, handler string) {
		if _, there := place[id]; !there && id != "" {
			place[id] = len(all)
			all = append(all, possession{id: id, handler: handler, pin: pins[id]})
		}
	}
	eachField(sandboxes.frame, func(n protowire.Number, item []byte) {
		if n == itemsField {
			add(text(item, idField), text(item, sandboxHandlerField))
		}
	})
	for _, c := range changes {
		if c.kind == madeSandbox && c.number > sandboxes.upTo {
			add(c.sandbox.GetId(), c.sandbox.GetRuntimeHandler())
		}
	}
	seen := map[string]bool{}
	put := func(id, sandbox string) {
		if at, there := place[sandbox]; there && !seen[id] {
			seen[id] = true
			all[at].containers = append(all[at].containers, id)
		}
	}
	eachField(containers.frame, func(n protowire.Number, item []byte) {
		if n == itemsField {
			put(text(item, idField), text(item, containerSandboxField))
		}
	})
	gone := map[string]bool{}
	for _, c := range changes {
		switch c.kind {
		case madeContainer:
			if c.number > containers.upTo {
				put(c.container.GetId(), c.container.GetPodSandboxId())
			}
		case removedContainer, removedSandbox:
			gone[c.id] = true
		}
	}
	all = slices.DeleteFunc(all, func(p possession) bool { return gone[p.id] })
	for i := range all {
		all[i].containers = slices.DeleteFunc(all[i].containers, func(id string) bool { return gone[id] })
	}
	return all
}

// save puts what is known into a state file: the lists with the changes since.
func (k *known) save(to *saved) error {
	to.Pins = k.stay()
	s, err := k.state()
	if err != nil {
		return err
	}
	k.mu.Lock()
	to.Listed = older(k.sandboxes.at, k.containers.at)
	k.mu.Unlock()
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
	sandboxes, containers := page{frame: from.Sandboxes, at: from.Listed}, page{frame: from.Containers, at: from.Listed}
	if _, err := (&known{sandboxes: sandboxes, containers: containers}).state(); err != nil {
		return err
	}
	k.sandboxes, k.containers, k.pins = sandboxes, containers, from.Pins
	return nil
}

// instead is the last known state in place of a list that failed with err, which
// is not to cost the lists of other backends.
func (l *lists) instead(ctx context.Context, err error) (*state, error) {
	if ctx.Err() != nil {
		return nil, err
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // its health says so
	default:
		log.G(ctx).WithError(err).WithField("backend", l.name).Warn("Backend list failed; serving last known entries")
	}
	if l.contest.Load() != nil {
		return &state{}, nil
	}
	s, decodeErr := l.known.state()
	if decodeErr != nil {
		return nil, err
	}
	for _, p := range s.sandboxes {
		p.RuntimeHandler = l.naming().sandbox(p.GetId(), p.GetRuntimeHandler())
	}
	for _, c := range s.containers {
		if c.GetImage() != nil {
			c.Image.RuntimeHandler = l.names.ours(c.GetImage().GetRuntimeHandler())
		}
	}
	return s, nil
}
