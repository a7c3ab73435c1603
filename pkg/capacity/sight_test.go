package capacity

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// What the API server no longer shows is not taken for what there is.
func TestSight(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds int) time.Time { return begun.Add(time.Duration(seconds) * time.Second) }
	type step func(*sight)
	opened := func(s int) step { return func(of *sight) { of.opened(at(s)) } }
	closed := func(s int) step { return func(of *sight) { of.closed(at(s)) } }
	fails := func(s int) step { return func(of *sight) { of.fails(at(s), errors.New("forbidden")) } }
	for _, c := range []struct {
		what  string
		steps []step
		now   int
		want  time.Duration
	}{
		{"not begun", nil, 9, 0},
		{"just opened", []step{opened(0)}, 0, 0},
		{"open", []step{opened(0)}, 900, 0},
		{"ended, and is opened again", []step{opened(0), closed(300)}, 301, 0},
		{"was opened again", []step{opened(0), closed(300), opened(301)}, 301, 0},
		{"ended, and nobody answers", []step{opened(0), closed(300)}, 310, 10 * time.Second},
		{"the first list fails", []step{fails(0)}, 5, 5 * time.Second},
		{"fails this moment", []step{opened(0), fails(7)}, 7, 1},
		{"failed", []step{opened(0), fails(7)}, 19, 12 * time.Second},
		{"fails again and again", []step{opened(0), fails(7), opened(8), closed(8), fails(8), opened(9), fails(9)}, 20, 13 * time.Second},
		{"has not lasted", []step{opened(0), fails(7), opened(10)}, 11, 4 * time.Second},
		{"sees again", []step{opened(0), fails(7), opened(10)}, 12, 0},
		{"saw again, and fails anew", []step{opened(0), fails(7), opened(10), fails(100)}, 101, time.Second},
	} {
		s := &sight{what: "pods"}
		for _, do := range c.steps {
			do(s)
		}
		got, err := s.blind(at(c.now))
		if got != c.want || (err != nil) != (c.want > 0) {
			t.Errorf("%s: blind for %v, want %v: %v", c.what, got, c.want, err)
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
