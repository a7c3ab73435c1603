package capacity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	// settled is how long a watch has to last after a failure, until what was missed has come.
	// A watch that the server ended is opened again within that time.
	settled = 2 * time.Second
	// blindLimit is how long nothing is seen of some objects until Run ends: what was seen
	// before is wrong by then, and the next start says which right is missing.
	blindLimit = 30 * time.Second
)

// sight is whether an informer sees what there is, or only has what it saw last.
type sight struct {
	what string // objects, as errors name them

	mu     sync.Mutex
	open   bool
	since  time.Time // when the watch was opened or ended
	failed time.Time // the first failure since it last saw; zero if there was none
	cause  error
}

// opened notes that a watch has begun.
func (s *sight) opened(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.since = true, now
}

// closed notes that it has ended. Servers end each after some minutes.
func (s *sight) closed(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.since = false, now
}

// fails notes that a list or a watch failed.
func (s *sight) fails(now time.Time, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed.IsZero() || s.recovered(now) {
		s.failed = now
	}
	s.open, s.since, s.cause = false, now, cause
}

// recovered: a watch has lasted since the last failure. mu is held.
func (s *sight) recovered(now time.Time) bool { return s.open && now.Sub(s.since) >= settled }

// blind is for how long nothing was seen, and why; zero if what there is is seen.
func (s *sight) blind(now time.Time) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.recovered(now):
		s.failed, s.cause = time.Time{}, nil
	case !s.failed.IsZero():
		return max(now.Sub(s.failed), 1), s.cause
	case !s.open && !s.since.IsZero() && now.Sub(s.since) >= settled:
		return now.Sub(s.since), errors.New("the watch ended, and the API server does not answer")
	}
	return 0, nil
}

// over has what lists and watches tell what they come to.
func (s *sight) over(of *cache.ListWatch) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			all, err := of.ListWithContext(ctx, o)
			if err != nil {
				s.fails(time.Now(), err)
			}
			return all, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := of.WatchWithContext(ctx, o)
			if err != nil {
				s.fails(time.Now(), err)
				return nil, err
			}
			// One that lists first has seen all only at the end of that.
			if o.SendInitialEvents == nil || !*o.SendInitialEvents {
				s.opened(time.Now())
			}
			return &seen{Interface: watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
				s.saw(e)
				return e, true
			}), ended: sync.OnceFunc(func() { s.closed(time.Now()) })}, nil
		},
	}
}

// saw looks at an event for what it says of the watch.
func (s *sight) saw(e watch.Event) {
	switch e.Type {
	case watch.Error:
		s.fails(time.Now(), apierrors.FromObject(e.Object))
	case watch.Bookmark:
		if o, is := e.Object.(metav1.ObjectMetaAccessor); is && o.GetObjectMeta().GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			s.opened(time.Now())
		}
	}
}

// seen is a watch that says when nobody reads it any more.
type seen struct {
	watch.Interface
	ended func()
}

func (w *seen) Stop() {
	w.ended()
	w.Interface.Stop()
}

// blindness is for how long the worst of some has seen nothing, and which one that is.
func blindness(all []*sight, now time.Time) (longest time.Duration, err error) {
	for _, s := range all {
		if d, cause := s.blind(now); d > longest {
			longest, err = d, fmt.Errorf("the API server has not shown %s for %s: %w", s.what, d.Round(time.Second), cause)
		}
	}
	return longest, err
}
