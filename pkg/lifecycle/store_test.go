package lifecycle

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
)

// newTestStore returns a store on the fakes of b, without a Manager.
func newTestStore(t *testing.T, b *bed, handlers ...string) *store {
	t.Helper()
	s := newStore(newBackground(t.Context()), b, b, &history{wake: make(chan struct{}, 1)})
	t.Cleanup(s.end)
	test.Must(t, s.publishFirst(conf(handlers...), map[string]*Intent{}, map[string]*rollout.Decision{}))
	return s
}

// A change takes effect only if its plan was published.
func TestStoreChangesAllOrNothing(t *testing.T) {
	b := &bed{t: t}
	s := newTestStore(t, b, "runc", "/r")
	cordon := func(t *truth) error { t.intents["runc"] = &Intent{Kind: Cordon}; return nil }
	before, plan := s.snapshot(), s.plan
	for what, change := range map[string]func() error{
		"the change fails": func() error {
			return s.change(func(t *truth) error { return errors.Join(cordon(t), errors.New("no")) })
		},
		"the plan is refused": func() error {
			b.set(func() { b.refuse = errors.New("no") })
			defer b.set(func() { b.refuse = nil })
			return s.change(cordon)
		},
	} {
		if err := change(); err == nil || s.snapshot() != before || s.plan != plan || len(before.intents) > 0 {
			t.Errorf("%s: %v, but the change is in force", what, err)
		}
	}
	if err := s.change(cordon); err != nil || b.phase("runc") != handler.Cordoned || len(before.intents) > 0 {
		t.Errorf("runc is %s, %v; the old snapshot has the intents %v", b.phase("runc"), err, before.intents)
	}
}

// All plans before pods are routed have the first generation.
func TestGenerationsOfAStore(t *testing.T) {
	b := &bed{t: t}
	s := newTestStore(t, b, "runc", "/r")
	var got []uint64
	for i, kind := range []IntentKind{Cordon, Drain, Cordon, Drain} {
		if i == 2 {
			test.Must(t, s.open())
		}
		test.Must(t, s.change(func(t *truth) error { t.intents["runc"] = &Intent{Kind: kind}; return nil }))
		got = append(got, s.Current().Generation)
	}
	test.EqualLists(t, "generations", got, []uint64{1, 1, 2, 3})
	select {
	case <-s.routing:
	default:
		t.Error("the channel routing is not closed")
	}
}

func TestStoreKnowsNames(t *testing.T) {
	s := newTestStore(t, &bed{t: t}, "runc", "/r", "crun", "/c")
	test.Check(t, s.checkExists("runc"))
	const want = `handler "rnuc" does not exist; the handlers are crun, runc (did you mean "runc"?): not found`
	if err := s.checkExists("rnuc"); !errdefs.IsNotFound(err) || err.Error() != want {
		t.Errorf("got %v", err)
	}
}
