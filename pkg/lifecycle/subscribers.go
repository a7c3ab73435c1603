package lifecycle

import (
	"cmp"
	"slices"
	"time"
)

// Event says that something is not as it was.
type Event struct {
	// Generation and Digest are those in force.
	Generation uint64
	Digest     string
	At         time.Time
	// Handlers are the names of those that came, went or changed in Definition, state
	// or what they can do, sorted. For a watcher that is slow, several events become one.
	Handlers []string
	// Outcome is that of the last reload the event is about, or nil.
	Outcome *Outcome
}

// watcher has room for one event. Only the store sends, with mu held.
type watcher struct{ events chan Event }

// drop ends a watcher; mu is held.
func (s *store) drop(w *watcher) {
	if _, there := s.watchers[w]; there {
		delete(s.watchers, w)
		close(w.events)
	}
}

// tell sends an event to all watchers; mu is held.
func (s *store) tell(handlers []string, o *Outcome) {
	for w := range s.watchers {
		e := Event{Generation: s.plan.Generation, Digest: s.plan.Digest, At: time.Now(), Handlers: handlers, Outcome: o}
		select {
		case missed := <-w.events:
			e = e.after(missed)
		default:
		}
		w.events <- e
	}
}

// after is e together with the event before it. Pure.
func (e Event) after(missed Event) Event {
	e.Handlers = slices.Concat(e.Handlers, missed.Handlers)
	slices.Sort(e.Handlers)
	e.Handlers = slices.Compact(e.Handlers)
	e.Outcome = cmp.Or(e.Outcome, missed.Outcome)
	return e
}

// changedNames are the handlers in which two plans differ, sorted. Pure.
func changedNames(before, now *Plan) []string {
	var names []string
	for _, e := range now.Entries {
		was, there := before.entry(e.Definition.Name)
		if !there || was.State != e.State || was.Since != e.Since || (was.Next == nil) != (e.Next == nil) || was.Configured != e.Configured ||
			(e.Definition.Name == before.Default) != (e.Definition.Name == now.Default) {
			names = append(names, e.Definition.Name)
		}
	}
	for _, e := range before.Entries {
		if _, stays := now.entry(e.Definition.Name); !stays {
			names = append(names, e.Definition.Name)
		}
	}
	slices.Sort(names)
	return names
}
