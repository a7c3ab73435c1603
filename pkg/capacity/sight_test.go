package capacity

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// What the API server no longer shows is not taken for what there is.
func TestSight(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds int) time.Time { return begun.Add(time.Duration(seconds) * time.Second) }
	type step func(*sight)
	asks := func(s int) step { return func(of *sight) { of.asks(at(s)) } }
	comes := func(s int) step { return func(of *sight) { of.comes(at(s)) } }
	listed := func(s int) step { return func(of *sight) { of.listed(at(s)) } }
	opened := func(s int) step { return func(of *sight) { of.opened(at(s)) } }
	closed := func(s int) step { return func(of *sight) { of.closed(at(s)) } }
	fails := func(s int) step { return func(of *sight) { of.fails(at(s), errors.New("busy")) } }
	forbids := func(s int) step {
		return func(of *sight) { of.fails(at(s), apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no"))) }
	}
	for _, c := range []struct {
		what        string
		steps       []step
		now         int
		blind, lost bool
	}{
		{"just opened", []step{asks(0), opened(0)}, 0, false, false},
		{"open", []step{asks(0), opened(0)}, 900, false, false},
		{"ended, and is opened again", []step{opened(0), closed(300), asks(300)}, 301, false, false},
		{"was opened again", []step{opened(0), closed(300), asks(300), opened(301)}, 301, false, false},
		{"ended, and nobody answers", []step{opened(0), closed(900), asks(900)}, 910, true, false},
		{"ended, and a proxy waits for the first event", []step{opened(0), closed(900), asks(900)}, 1190, true, false},
		{"ended, and nobody answers for long", []step{opened(0), closed(900), asks(900)}, 1201, true, true},
		{"the first list fails", []step{asks(0), fails(0)}, 5, true, false},
		{"fails this moment", []step{opened(0), fails(7)}, 7, true, false},
		{"fails for 59 s", []step{opened(0), fails(900), asks(959), fails(959)}, 959, true, false},
		{"is to be asked again", []step{opened(0), fails(900), asks(959), fails(959)}, 990, true, false},
		{"fails for more than a minute", []step{opened(0), fails(900), asks(961), fails(961)}, 961, true, true},
		{"never was there", []step{asks(0), fails(0), asks(61), fails(61)}, 61, true, true},
		{"has not lasted", []step{opened(0), fails(7), opened(10)}, 11, true, false},
		{"sees again", []step{opened(0), fails(7), opened(10)}, 12, false, false},
		{"saw again, and fails anew", []step{opened(0), fails(7), opened(10), fails(100)}, 101, true, false},
		{"saw again, and is opened again", []step{opened(0), fails(7), opened(10), closed(100), asks(100)}, 101, false, false},
		{"the first list takes long", []step{asks(0)}, 299, false, false},
		{"the first list is never answered", []step{asks(0)}, 301, false, true},
		{"the first list comes in parts", []step{asks(0), comes(200), comes(400)}, 699, false, false},
		{"the first list stops to come", []step{asks(0), comes(200), comes(400)}, 701, false, true},
		{"a list takes long after failures", []step{opened(0), fails(7), asks(50), fails(50), asks(60)}, 200, true, false},
		{"the watch of a list is never answered", []step{asks(0), listed(1), asks(1)}, 4, true, false},
		{"lists between failures", []step{opened(0), fails(7), asks(50), listed(60), asks(60), fails(70)}, 70, true, false},
		{"may list and not watch", []step{opened(0), forbids(7), asks(50), listed(60), asks(60), forbids(70)}, 70, true, true},
	} {
		s := &sight{what: "pods"}
		for _, do := range c.steps {
			do(s)
		}
		if got := s.blind(at(c.now)); got != c.blind {
			t.Errorf("%s: blind: %v, want %v", c.what, got, c.blind)
		}
		if err := s.lost(at(c.now)); (err != nil) != c.lost {
			t.Errorf("%s: lost: %v, want %v", c.what, err, c.lost)
		}
	}
}

// A server that knows no watch that lists first has not failed: a list follows.
func TestListsApart(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	first := metav1.ListOptions{SendInitialEvents: new(true)}
	for _, c := range []struct {
		what string
		o    metav1.ListOptions
		err  error
		want bool
	}{
		{"is invalid", first, invalid, true},
		{"is a bad request", first, apierrors.NewBadRequest("unknown"), true},
		{"is granted", first, nil, false},
		{"is forbidden", first, apierrors.NewForbidden(schema.GroupResource{}, "", nil), false},
		{"does not list and is invalid", metav1.ListOptions{}, invalid, false},
	} {
		if got := listsApart(c.o, c.err); got != c.want {
			t.Errorf("one that %s: %v", c.what, got)
		}
	}
}

// Who has not seen anything yet does not say that all is well.
func TestWatchingBeforeTheFirstList(t *testing.T) {
	for _, listed := range []bool{false, true} {
		registry := prometheus.NewRegistry()
		c := &controller{metrics: NewMetrics(registry), sights: []*sight{{what: "pods"}}}
		over, end := context.WithCancel(t.Context())
		end()
		if err := c.look(over, listed); err != nil {
			t.Fatal(err)
		}
		all, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if got := f.GetMetric()[0].GetGauge().GetValue(); f.GetName() == "berth_controller_watching" && (got == 1) != listed {
				t.Errorf("listed: %v, and watching is %v", listed, got)
			}
		}
	}
}

// A watch that lists at first has seen all only at the end of that.
func TestSightOfEvents(t *testing.T) {
	whole := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}
	for _, c := range []struct {
		what  string
		event watch.Event
		open  bool
		fault bool
	}{
		{"an object", watch.Event{Type: watch.Added, Object: &corev1.Pod{}}, false, false},
		{"a bookmark", watch.Event{Type: watch.Bookmark, Object: &corev1.Pod{}}, false, false},
		{"the end of the list", watch.Event{Type: watch.Bookmark, Object: whole}, true, false},
		{"an error", watch.Event{Type: watch.Error, Object: &metav1.Status{Message: "too old"}}, false, true},
	} {
		s := &sight{}
		s.saw(c.event)
		if s.open != c.open || (s.cause != nil) != c.fault {
			t.Errorf("%s: open is %v, and the fault %v", c.what, s.open, s.cause)
		}
	}
}
