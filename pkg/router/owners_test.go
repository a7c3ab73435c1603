package router

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// inventoried is a backend with an inventory that the test sets.
type inventoried struct {
	*routertest.Backend
	inventory func() []handler.Owned
}

func (i *inventoried) Inventory() []handler.Owned { return i.inventory() }

func owned(sandbox string, containers ...string) handler.Owned {
	return handler.Owned{Sandbox: sandbox, Handler: "runc", Containers: containers}
}

func TestAdoptLearnsWhatABackendHas(t *testing.T) {
	o := newOwners()
	b := &inventoried{routertest.New("one"), func() []handler.Owned { return []handler.Owned{owned("5a", "c1", "c2"), owned("5b")} }}
	o.adopt(b)
	o.adopt(b)
	if n := len(o.all()); n != 1 {
		t.Errorf("adopting twice gives %d backends", n)
	}
	for id, sandbox := range map[string]string{"c1": "5a", "c2": "5a"} {
		c, err := o.container(id)
		if err != nil || c.Sandbox != sandbox || c.Handler != "runc" || c.Backend != Backend(b) {
			t.Errorf("container %s: owner %+v, error %v", id, c, err)
		}
	}
	o.dropSandbox("5a")
	if _, err := o.container("c1"); !unknown(err) {
		t.Errorf("the container of a removed sandbox has an owner, error %v", err)
	}
	test.Checkf(t, test.Err(o.sandbox("5b")), "find the other sandbox")
	if len(o.contents) != 0 {
		t.Errorf("contents of removed sandboxes are kept: %v", o.contents)
	}
}

// An inventory that was taken before a removal must not undo it.
func TestInventoriesDoNotBringBackWhatIsRemoved(t *testing.T) {
	for name, take := range map[string]func(o *owners, b Backend) error{
		"refresh":   func(o *owners, b Backend) error { o.refresh(b); return nil },
		"reconcile": (*owners).reconcile,
	} {
		o := newOwners()
		var removal sync.WaitGroup
		b := &inventoried{Backend: routertest.New("one")}
		b.inventory = func() []handler.Owned {
			if o.mu.TryLock() {
				o.mu.Unlock()
				t.Errorf("%s: the inventory is taken without mu", name)
			}
			removal.Go(func() { o.dropSandbox("5a") }) // by another call, during the inventory
			return []handler.Owned{owned("5a", "c1")}
		}
		test.Check(t, take(o, b))
		removal.Wait()
		if _, err := o.sandbox("5a"); !unknown(err) {
			t.Errorf("%s: the sandbox is back, error %v", name, err)
		}
		if _, err := o.container("c1"); !unknown(err) {
			t.Errorf("%s: its container is back, error %v", name, err)
		}
	}
}

func TestContainerOfARemovedSandboxGetsNoOwner(t *testing.T) {
	o := newOwners()
	test.Check(t, o.addSandbox("5a", "runc", handler.Attempt{}, routertest.New("one")))
	o.dropSandbox("5a")
	test.Check(t, o.addContainer("c1", "5a"))
	if _, err := o.container("c1"); !unknown(err) {
		t.Errorf("the container has an owner, error %v", err)
	}
}

// With one backend, a lookup of an unknown id takes the backend's inventory only during
// a creation: such lookups are frequent and must be cheap.
func TestUnknownIDsAskBackendsOnlyDuringCreation(t *testing.T) {
	o := newOwners()
	asked := 0
	b := &inventoried{Backend: routertest.New("one")}
	b.inventory = func() []handler.Owned { asked++; return []handler.Owned{owned("5b")} }
	o.adopt(&inventoried{b.Backend, func() []handler.Owned { return nil }})
	o.backends.Store(&[]Backend{b})

	if _, err := o.sandbox("5b"); !unknown(err) || asked != 0 {
		t.Fatalf("error %v, after %d inventories", err, asked)
	}
	_ = o.create(b, func() error {
		if _, err := o.sandbox("5b"); err != nil || asked != 1 {
			t.Errorf("error %v, after %d inventories", err, asked)
		}
		return nil
	})
}

func TestFailedCreationTeachesWhatIsLeft(t *testing.T) {
	o := newOwners()
	b := &inventoried{routertest.New("one"), func() []handler.Owned { return []handler.Owned{owned("5a")} }}
	failed := errors.New("failed half-way")
	if err := o.create(b, func() error { return failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	test.Checkf(t, test.Err(o.sandbox("5a")), "find the leftover")
}

// A start whose sandbox is already in an inventory counts as one pod, not two.
func TestSandboxesOfStartsAreNotSettled(t *testing.T) {
	o, one := newOwners(), routertest.New("one")
	make := func() string {
		resp := test.Value(one.RunPodSandbox(handler.WithDefinition(t.Context(), &handler.Definition{Name: "runc"}), &runtimeapi.RunPodSandboxRequest{}))(t)
		return resp.GetPodSandboxId()
	}
	want := func(settled, unsettled int) {
		t.Helper()
		if s, u := o.live("runc"); s != settled || u != unsettled {
			t.Errorf("%d sandboxes are settled and %d unsettled, want %d and %d", s, u, settled, unsettled)
		}
	}
	want(0, 0)
	old := make()
	o.adopt(one) // of an earlier daemon
	want(1, 0)
	_ = o.create(one, func() error {
		id := make()
		want(1, 0)
		o.refresh(one) // for another call
		want(1, 1)
		test.Check(t, o.addSandbox(id, "runc", handler.Attempt{}, one))
		want(2, 0)
		return nil
	})
	one.Die(old)
	want(1, 0)
	o.dropSandbox(old)
	want(1, 0)
	_ = o.create(one, func() error {
		left := make()
		o.refresh(one)
		one.Die(left) // it failed half-way
		return nil
	})
	want(1, 0)
}

// counted is a backend that counts the calls of Inventory.
type counted struct {
	inventoried
	asked atomic.Int64
	// slow is called by Inventory, if it is not nil.
	slow func()
}

func (c *counted) Inventory() []handler.Owned {
	c.asked.Add(1)
	if c.slow != nil {
		c.slow()
	}
	return c.inventoried.Inventory()
}

func TestManyCallsAboutWhatIsGoneShareALook(t *testing.T) {
	hold, entered := make(chan struct{}), make(chan struct{}, 100)
	nothing := func() []handler.Owned { return nil }
	one := &counted{inventoried: inventoried{routertest.New("one"), nothing}}
	two := &counted{inventoried: inventoried{routertest.New("two"), nothing}}
	o := newOwners()
	o.adopt(one)
	o.adopt(two)
	one.asked.Store(0)
	one.slow = func() { entered <- struct{}{}; <-hold }
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() {
			if _, err := o.container("gone"); !unknown(err) {
				t.Error(err)
			}
		})
	}
	<-entered
	for o.refreshes.asked.Load() < 50 {
		runtime.Gosched()
	}
	close(hold)
	calls.Wait()
	if n := one.asked.Load(); n > 2 { // one for the first call, and one for all others
		t.Errorf("50 concurrent calls took %d inventories", n)
	}
}
