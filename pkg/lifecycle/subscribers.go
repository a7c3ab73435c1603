package lifecycle

import (
	"cmp"
	"slices"
	"time"
)

// Event reports a change of the table or a reload.
type Event struct {
	// Generation and Digest are those in force.
	Generation uint64
	Digest     string
	At         time.Time
	// Handlers are the sorted names of added and removed handlers, and of those with a new
	// Definition, state or capability. A slow watcher gets several events merged into one.
	Handlers []string
	// Outcome is the outcome of the last reload in this event, or nil.
	Outcome *Outcome
}

// watcher buffers one event. Only the store sends, with mu held.
type watcher struct{ events chan Event }

// drop closes a watcher; mu is held.
func (s *store) drop(w *watcher) {
	if _, there := s.watchers[w]; there {
		delete(s.watchers, w)
		close(w.events)
	}
}

// notify sends an event to all watchers; mu is held.
func (s *store) notify(handlers []string, o *Outcome) {
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

// after merges e with the event before it. Pure.
func (e Event) after(missed Event) Event {
	e.Handlers = slices.Concat(e.Handlers, missed.Handlers)
	slices.Sort(e.Handlers)
	e.Handlers = slices.Compact(e.Handlers)
	e.Outcome = cmp.Or(e.Outcome, missed.Outcome)
	return e
}

// changedNames returns the sorted names of handlers that differ between two plans. Pure.
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
