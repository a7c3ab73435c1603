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

// Owner is the backend and handler of a sandbox or container. It is immutable.
type Owner struct {
	ID string
	// Sandbox is the ID of the container's sandbox, or ID itself.
	Sandbox string
	// Handler is the name of the Definition that the sandbox was created with.
	Handler string
	// Attempt is the Attempt of the sandbox, for startCounter.
	Attempt handler.Attempt
	Backend Backend
}

// errUnknown marks a call about an ID that no backend has. A backend's own NotFound is kept apart,
// because Stop and Remove of an unknown ID succeed.
var errUnknown = errors.New("it does not exist")

// owners contains the owner of every sandbox and container.
type owners struct {
	sandboxes, containers index

	// creating counts calls that may have created an object without a recorded owner.
	creating atomic.Int64

	// mu guards changes; lookups do not need it.
	mu       sync.Mutex
	contents map[string][]string
	// pods are the sandboxes of each handler, by ID.
	pods map[string]map[string]*Owner
	// unsettled are the sandboxes that an inventory contained while calls were creating objects. A
	// live one counts as a start that has not returned yet.
	unsettled map[string]bool
	// backends are the adopted backends.
	backends atomic.Pointer[[]Backend]
	// backendsCtx ends, by cancelBackends, when the set of backends changes.
	backendsCtx    context.Context
	cancelBackends context.CancelFunc

	refreshes coalescedRefresh
}

func newOwners() *owners {
	o := &owners{contents: map[string][]string{}, pods: map[string]map[string]*Owner{}, unsettled: map[string]bool{}}
	o.backendsCtx, o.cancelBackends = context.WithCancel(context.Background())
	o.backends.Store(&[]Backend{})
	return o
}

// all returns every adopted backend, in the order of adoption.
func (o *owners) all() []Backend { return *o.backends.Load() }

// beside returns all backends but b.
func (o *owners) beside(b Backend) []Backend {
	return slices.DeleteFunc(slices.Clone(o.all()), func(other Backend) bool { return other.ID() == b.ID() })
}

// adopt adds b and its inventory.
func (o *owners) adopt(b Backend) {
	o.mu.Lock()
	known := o.all()
	if !slices.ContainsFunc(known, func(k Backend) bool { return k.ID() == b.ID() }) {
		o.serve(append(slices.Clone(known), b))
	}
	o.mu.Unlock()
	o.refresh(b)
}

// serve replaces the set of backends; mu is held.
func (o *owners) serve(backends []Backend) {
	o.backends.Store(&backends)
	o.cancelBackends()
	o.backendsCtx, o.cancelBackends = context.WithCancel(context.Background())
}

// snapshot returns all backends, and a context that ends when the set changes.
func (o *owners) snapshot() ([]Backend, context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all(), o.backendsCtx
}

// refresh adds the unknown objects of b's inventory. It takes the inventory with mu held: a backend
// removes an object before the router drops its owner, so a dropped object cannot return.
func (o *owners) refresh(b Backend) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(b, b.Inventory())
}

// add adds the unknown objects of an inventory; mu is held.
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
		o.unsettled[s.ID] = true
	}
}

// live counts the live sandboxes of a handler; those of starts that have not returned count as
// unsettled. It asks the backends each time, because only they know when a sandbox dies.
func (o *owners) live(name string) (settled, unsettled int) {
	type one struct {
		*Owner
		found bool
	}
	o.mu.Lock()
	all := make([]one, 0, len(o.pods[name]))
	for id, s := range o.pods[name] {
		all = append(all, one{s, o.unsettled[id]})
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

// ofPod returns the owner of a sandbox of the pod uid, preferably of a live one, or nil.
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
		o.refreshes.run(o)
		look()
	}
	return of
}

// of returns the IDs of a backend's sandboxes.
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

// counts returns the number of sandboxes of each handler that has any.
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

// addSandbox records a new sandbox. If another backend already has its ID it returns an error, and
// the owner stays.
func (o *owners) addSandbox(id, name string, a handler.Attempt, b Backend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := foreign("pod sandbox", o.sandboxes.get(id), b); err != nil {
		return err
	}
	o.put(&Owner{ID: id, Sandbox: id, Handler: name, Attempt: a, Backend: b})
	delete(o.unsettled, id)
	return nil
}

// addContainer records a new container, unless its sandbox was removed meanwhile together with the
// container. If another backend already has its ID it returns an error, and the owner stays.
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

// foreign returns an error if another backend than b owns the object. Two backends with the same
// pod are probably the same daemon.
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

// drop drops a sandbox with its containers; mu is held.
func (o *owners) drop(id string) {
	for _, c := range o.contents[id] {
		o.containers.drop(c)
	}
	if s := o.sandboxes.get(id); s != nil {
		if delete(o.pods[s.Handler], id); len(o.pods[s.Handler]) == 0 {
			delete(o.pods, s.Handler)
		}
	}
	delete(o.unsettled, id)
	o.sandboxes.drop(id)
	delete(o.contents, id)
}

func (o *owners) dropContainer(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropOne(id)
}

// dropOne drops a container; mu is held.
func (o *owners) dropOne(id string) {
	if c := o.containers.get(id); c != nil {
		o.containers.drop(id)
		o.contents[c.Sandbox] = slices.DeleteFunc(o.contents[c.Sandbox], func(other string) bool { return other == id })
	}
}

// sandbox finds the owner of a sandbox by its ID or a unique prefix.
func (o *owners) sandbox(id string) (*Owner, error) { return o.find(&o.sandboxes, "sandbox", id) }

// container finds the owner of a container by its ID or a unique prefix.
func (o *owners) container(id string) (*Owner, error) { return o.find(&o.containers, "container", id) }

// find looks an owner up. If objects are being created, or if there are several backends, it
// refreshes the owners before it fails: a list may show a sandbox before the call that creates it
// has returned here, and other clients may create objects in other daemons.
func (o *owners) find(x *index, kind, id string) (*Owner, error) {
	if owner := x.get(id); owner != nil {
		return owner, nil
	}
	if id == "" {
		return nil, fmt.Errorf("the %s ID is empty; use the ID or a prefix of it: %w", kind, errdefs.ErrInvalidArgument)
	}
	owner, err := x.resolve(id)
	if owner == nil && err == nil && (o.creating.Load() > 0 || len(o.all()) > 1) {
		o.refreshes.run(o)
		owner, err = x.resolve(id)
	}
	if owner == nil && err == nil {
		err = fmt.Errorf("%s %q: %w: %w", kind, printable.Clip(id, fullID), errUnknown, errdefs.ErrNotFound)
	}
	return owner, err
}

// byPrefix returns the owner of a sandbox or container by its ID or a unique prefix, or nil.
func (o *owners) byPrefix(id string) (*Owner, error) {
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

// create runs a call that creates a sandbox or container on b. After a failure it records partially
// created objects, so that the client can remove them.
func (o *owners) create(b Backend, call func() error) error {
	o.creating.Add(1)
	defer o.creating.Add(-1)
	err := call()
	if err != nil {
		o.refresh(b)
	}
	return err
}

// coalescedRefresh refreshes the owners for calls about unknown IDs. Calls that arrive during a
// refresh share the next one, so that repeated calls about removed IDs do not keep the backends
// busy.
type coalescedRefresh struct {
	// asked numbers the calls.
	asked atomic.Uint64

	mu sync.Mutex
	// answered is the number of the last call that arrived before the last refresh began.
	answered uint64
}

// run returns once the owners contain everything that the backends had when it was called.
func (l *coalescedRefresh) run(o *owners) {
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
