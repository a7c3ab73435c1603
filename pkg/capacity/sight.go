package capacity

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// refusedLimit is how long a server only refuses until Run ends: what was seen before is
	// wrong by then, and the next start says which right is missing. It is looked at when the
	// server has refused again, for client-go asks only once a minute in the end.
	refusedLimit = time.Minute
	// answerLimit is how long nothing comes of a question until Run ends. A list of many
	// pods takes long, and some proxies show a watch only with its first event.
	answerLimit = 5 * time.Minute
)

// sight is whether an informer sees what there is, or only has what it saw last.
type sight struct {
	what string // objects, as errors name them

	mu     sync.Mutex
	open   bool
	since  time.Time // when the watch was opened or ended, or the list came that it begins with
	cause  error     // the last failure since it last saw, or nil
	asking bool      // a question is neither answered whole nor refused
	got    time.Time // when something last came, or the first question was asked
	failed time.Time // when a question last failed
}

// asks notes that a list or a watch is asked for.
func (s *sight) asks(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking = true
	if s.got.IsZero() {
		s.got = now
	}
}

// comes notes a part of an answer.
func (s *sight) comes(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = now
}

// listed notes that a list has come. Where watches are forbidden it is not enough.
func (s *sight) listed(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking, s.since = false, now
	if !apierrors.IsForbidden(s.cause) {
		s.got = now
	}
}

// opened notes that a watch has begun.
func (s *sight) opened(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open, s.asking, s.since, s.got = true, false, now, now
}

// closed notes that it has ended. Servers end each after some minutes.
func (s *sight) closed(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends(now)
}

// fails notes that a list or a watch failed.
func (s *sight) fails(now time.Time, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends(now)
	s.cause, s.failed = cause, now
}

// ends: what was open has shown all until now. mu is held.
func (s *sight) ends(now time.Time) {
	if s.open {
		s.got = now
	}
	s.recovers(now)
	s.open, s.asking, s.since = false, false, now
}

// blind says whether what there is is not seen.
func (s *sight) blind(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recovers(now)
	return s.cause != nil || !s.open && !s.since.IsZero() && now.Sub(s.since) >= settled
}

// recovers forgets a failure when a watch has lasted since. mu is held.
func (s *sight) recovers(now time.Time) {
	if s.open && now.Sub(s.since) >= settled {
		s.cause = nil
	}
}

// lost says why nothing is to be hoped for, or is nil.
func (s *sight) lost(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	none := now.Sub(s.got)
	switch {
	case s.open:
		return nil
	case s.failed.Sub(s.got) > refusedLimit:
		return fmt.Errorf("the API server has not shown %s for %s: %w", s.what, none.Round(time.Second), s.cause)
	case s.asking && none > answerLimit:
		return fmt.Errorf("the API server has not shown %s for %s: it does not answer", s.what, none.Round(time.Second))
	}
	return nil
}

// over has what lists and watches tell what they come to.
func (s *sight) over(of *cache.ListWatch) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			s.asks(time.Now())
			all, err := of.ListWithContext(ctx, o)
			if err != nil {
				s.fails(time.Now(), err)
				return all, err
			}
			s.listed(time.Now())
			return all, nil
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			s.asks(time.Now())
			w, err := of.WatchWithContext(ctx, o)
			if listsApart(o, err) {
				s.comes(time.Now())
				return nil, err
			}
			if err != nil {
				s.fails(time.Now(), err)
				return nil, err
			}
			s.comes(time.Now())
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

// listsApart says whether a server only knows no watch that lists first: client-go lists
// then. Pure.
func listsApart(o metav1.ListOptions, err error) bool {
	return o.SendInitialEvents != nil && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err))
}

// saw looks at an event for what it says of the watch.
func (s *sight) saw(e watch.Event) {
	if e.Type == watch.Error {
		s.fails(time.Now(), apierrors.FromObject(e.Object))
		return
	}
	s.comes(time.Now())
	if o, is := e.Object.(metav1.ObjectMetaAccessor); is && e.Type == watch.Bookmark &&
		o.GetObjectMeta().GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
		s.opened(time.Now())
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

// blind says whether one of some does not see what there is.
func blind(all []*sight, now time.Time) bool {
	return slices.ContainsFunc(all, func(s *sight) bool { return s.blind(now) })
}

// lost says of which of some nothing is to be hoped for, and why; or is nil.
func lost(all []*sight, now time.Time) error {
	var faults []error
	for _, s := range all {
		faults = append(faults, s.lost(now))
	}
	return errors.Join(faults...)
}
