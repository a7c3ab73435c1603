package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
)

// Owner says whose a sandbox or container is. It is never changed.
type Owner struct {
	ID string
	// Sandbox is the id of the sandbox: of the container's, or ID itself.
	Sandbox string
	// Handler is the name of the Definition that the sandbox was created with.
	Handler string
	// Attempt is the sandbox's, as startCounter counts it.
	Attempt handler.Attempt
	Backend Backend
}

// errUnknown is what a call about an id that no backend has begins as. It is
// apart from a backend's own NotFound, because Stop and Remove of such an id
// succeed.
var errUnknown = errors.New("it does not exist")

// owners knows the owner of every sandbox and container.
type owners struct {
	sandboxes, containers index

	// creating counts calls that may have made something that has no owner yet.
	creating atomic.Int64

	// mu is held to change, never to look up.
	mu       sync.Mutex
	contents map[string][]string
	// pods are the sandboxes of each handler that has any, by their ids.
	pods map[string]map[string]*Owner
	// found are sandboxes that an inventory had while starts were under way: one
	// that is live is of a start that has not said so yet.
	found map[string]bool
	// backends are those that were adopted, for lists and for late ids.
	backends atomic.Pointer[[]Backend]
	// turned ends, by turn, when there are other backends.
	turned context.Context
	turn   context.CancelFunc

	again lookAgain
}

func newOwners() *owners {
	o := &owners{contents: map[string][]string{}, pods: map[string]map[string]*Owner{}, found: map[string]bool{}}
	o.turned, o.turn = context.WithCancel(context.Background())
	o.backends.Store(&[]Backend{})
	return o
}

// all returns every adopted backend, in the order of adoption.
func (o *owners) all() []Backend { return *o.backends.Load() }

// beside are all backends but b.
func (o *owners) beside(b Backend) []Backend {
	return slices.DeleteFunc(slices.Clone(o.all()), func(other Backend) bool { return other.ID() == b.ID() })
}

// adopt makes b known, with all that it has.
func (o *owners) adopt(b Backend) {
	o.mu.Lock()
	known := o.all()
	if !slices.ContainsFunc(known, func(k Backend) bool { return k.ID() == b.ID() }) {
		o.serve(append(slices.Clone(known), b))
	}
	o.mu.Unlock()
	o.refresh(b)
}

// serve replaces the backends; mu is held.
func (o *owners) serve(backends []Backend) {
	o.backends.Store(&backends)
	o.turn()
	o.turned, o.turn = context.WithCancel(context.Background())
}

// now are all backends, and a context that ends when there are others.
func (o *owners) now() ([]Backend, context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all(), o.turned
}

// refresh adds what b has and we do not know. The inventory is taken with mu held:
// backends create and remove before their owners are recorded and dropped, so it has
// nothing that is removed already.
func (o *owners) refresh(b Backend) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(b, b.Inventory())
}

// add takes over an inventory; mu is held.
func (o *owners) add(b Backend, inventory []handler.Owned) {
	for _, s := range inventory {
		if o.sandboxes.get(s.Sandbox) == nil {
			o.put(&Owner{ID: s.Sandbox, Sandbox: s.Sandbox, Handler: s.Handler, Attempt: attemptOf(s), Backend: b})
		}
		for _, c := range s.Containers {
			o.own(c, o.sandboxes.get(s.Sandbox))
		}
	}
}

// put records a sandbox, unless it is known; mu is held.
func (o *owners) put(s *Owner) {
	if o.sandboxes.get(s.ID) != nil {
		return
	}
	o.sandboxes.put(s)
	if o.pods[s.Handler] == nil {
		o.pods[s.Handler] = map[string]*Owner{}
	}
	o.pods[s.Handler][s.ID] = s
	if o.creating.Load() > 0 {
		o.found[s.ID] = true
	}
}

// live counts the sandboxes of a handler that their backends call live. Those of
// starts that have not ended yet are in unsettled, not in settled. Backends are
// asked each time: they alone know when a sandbox dies.
func (o *owners) live(name string) (settled, unsettled int) {
	type one struct {
		*Owner
		found bool
	}
	o.mu.Lock()
	all := make([]one, 0, len(o.pods[name]))
	for id, s := range o.pods[name] {
		all = append(all, one{s, o.found[id]})
	}
	o.mu.Unlock()
	for _, s := range all {
		switch {
		case !s.Backend.Live(s.ID):
		case s.found:
			unsettled++
		default:
			settled++
		}
	}
	return settled, unsettled
}

// ofPod is the owner of a sandbox of the pod uid, the live one if there are several; nil if none is known.
func (o *owners) ofPod(uid string) *Owner {
	var of *Owner
	look := func() {
		o.sandboxes.each(func(s *Owner) {
			if s.Attempt.Pod == uid && (of == nil || s.Backend.Live(s.ID)) {
				of = s
			}
		})
	}
	if look(); of == nil && len(o.all()) > 1 {
		o.again.ask(o)
		look()
	}
	return of
}

// of are the sandboxes of a backend.
func (o *owners) of(b Backend) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ids []string
	for _, pods := range o.pods {
		for id, s := range pods {
			if s.Backend.ID() == b.ID() {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// counts returns how many sandboxes each handler has that has any.
func (o *owners) counts() map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := make(map[string]int, len(o.pods))
	for name, pods := range o.pods {
		all[name] = len(pods)
	}
	return all
}

// own records a container of a sandbox; mu is held.
func (o *owners) own(container string, s *Owner) {
	if o.containers.get(container) != nil {
		return
	}
	o.containers.put(&Owner{ID: container, Sandbox: s.ID, Handler: s.Handler, Attempt: s.Attempt, Backend: s.Backend})
	o.contents[s.ID] = append(o.contents[s.ID], container)
}

// addSandbox records a new sandbox. One that another backend has is an error, and
// stays the other's.
func (o *owners) addSandbox(id, name string, a handler.Attempt, b Backend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := foreign("pod sandbox", o.sandboxes.get(id), b); err != nil {
		return err
	}
	o.put(&Owner{ID: id, Sandbox: id, Handler: name, Attempt: a, Backend: b})
	delete(o.found, id)
	return nil
}

// addContainer records a new container of a sandbox, unless the sandbox was
// removed meanwhile and took the container with it. One that another backend has
// is an error, and stays the other's.
func (o *owners) addContainer(id, sandbox string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.sandboxes.get(sandbox)
	if s == nil {
		return nil
	}
	if err := foreign("container", o.containers.get(id), s.Backend); err != nil {
		return err
	}
	o.own(id, s)
	return nil
}

// foreign is the error of a backend that says that it has what another one has.
// Two backends that have one pod are probably one daemon.
func foreign(kind string, owner *Owner, b Backend) error {
	if owner == nil || owner.Backend.ID() == b.ID() {
		return nil
	}
	return fmt.Errorf("backends %q and %q both have the %s %s; check that they are not the same daemon, and that neither leads to the other: %w", owner.Backend.ID(), b.ID(), kind, owner.ID, errdefs.ErrAlreadyExists)
}

func (o *owners) dropSandbox(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(id)
}

// drop is dropSandbox; mu is held.
func (o *owners) drop(id string) {
	for _, c := range o.contents[id] {
		o.containers.drop(c)
	}
	if s := o.sandboxes.get(id); s != nil {
		if delete(o.pods[s.Handler], id); len(o.pods[s.Handler]) == 0 {
			delete(o.pods, s.Handler)
		}
	}
	delete(o.found, id)
	o.sandboxes.drop(id)
	delete(o.contents, id)
}

func (o *owners) dropContainer(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropOne(id)
}

// dropOne is dropContainer; mu is held.
func (o *owners) dropOne(id string) {
	if c := o.containers.get(id); c != nil {
		o.containers.drop(id)
		o.contents[c.Sandbox] = slices.DeleteFunc(o.contents[c.Sandbox], func(other string) bool { return other == id })
	}
}

// sandbox finds the owner of a sandbox by its id or a unique prefix of it.
func (o *owners) sandbox(id string) (*Owner, error) { return o.find(&o.sandboxes, "sandbox", id) }

// container finds the owner of a container by its id or a unique prefix of it.
func (o *owners) container(id string) (*Owner, error) { return o.find(&o.containers, "container", id) }

// find is a lookup that asks the backends before it says that an id is unknown,
// while something is being created, and if there are several: a list may show a
// sandbox before the call that creates it has returned here, or what others made.
func (o *owners) find(x *index, kind, id string) (*Owner, error) {
	if owner := x.get(id); owner != nil {
		return owner, nil
	}
	if id == "" {
		return nil, fmt.Errorf("the %s ID is empty; use the ID or a prefix of it: %w", kind, errdefs.ErrInvalidArgument)
	}
	owner, err := x.resolve(id)
	if owner == nil && err == nil && (o.creating.Load() > 0 || len(o.all()) > 1) {
		o.again.ask(o)
		owner, err = x.resolve(id)
	}
	if owner == nil && err == nil {
		err = fmt.Errorf("%s %q: %w: %w", kind, printable.Clip(id, fullID), errUnknown, errdefs.ErrNotFound)
	}
	return owner, err
}

// begun is the owner of a container's or sandbox's id that begins so.
func (o *owners) begun(id string) (*Owner, error) {
	sandbox, err := o.sandboxes.resolve(id)
	if err != nil {
		return nil, err
	}
	container, err := o.containers.resolve(id)
	if err == nil && sandbox != nil && container != nil {
		err = ambiguous(id, []*Owner{sandbox, container})
	}
	if err != nil || container != nil {
		return container, err
	}
	return sandbox, nil
}

// create runs a call that makes a sandbox or container on b, and learns what a
// failed one left behind, so that the caller of the CRI can remove it.
func (o *owners) create(b Backend, call func() error) error {
	o.creating.Add(1)
	defer o.creating.Add(-1)
	err := call()
	if err != nil {
		o.refresh(b)
	}
	return err
}

// lookAgain asks all backends what they have, for calls about unknown ids. Calls that
// arrive during a look share the next one, so that repeated calls about removed ids do
// not keep the backends busy.
type lookAgain struct {
	// asked numbers the calls.
	asked atomic.Uint64

	mu sync.Mutex
	// answered is the last call that was there before the last look began.
	answered uint64
}

// ask returns when the owners have what all backends had when it was called.
func (l *lookAgain) ask(o *owners) {
	mine := l.asked.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answered >= mine {
		return
	}
	upTo := l.asked.Load()
	for _, b := range o.all() {
		o.refresh(b)
	}
	l.answered = upTo
}
