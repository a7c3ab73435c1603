package remote

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/berth-cri/berth/pkg/handler"
)

// A pod stays a pod of the handler that it was made under, or adopted for, when
// other handlers come to lead to its daemon by the same name, or its own leads
// elsewhere. What the daemon says does not tell that, so it is pinned.

// pin says whose a sandbox is; mu is held, or nobody else has k.
func (k *known) pin(id, name string) {
	if k.pins == nil {
		k.pins = map[string]string{}
	}
	k.pins[id] = name
	k.pinTurn++
	k.edition++
}

// unpin forgets what was said; mu is held.
func (k *known) unpin(id string) {
	if k.pins[id] != "" {
		delete(k.pins, id)
		k.pinTurn++
	}
}

// pinned is whose a sandbox is, empty if that follows from what the daemon says.
func (k *known) pinned(id string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pins[id]
}

// pinsNow says how often the pins have changed.
func (k *known) pinsNow() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.pinTurn
}

// unpinned says that there are no pins.
func (k *known) unpinned() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.pins) == 0
}

// pinAll pins what has no pin, and says whether that was anything.
func (k *known) pinAll(pins map[string]string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	some := false
	for id, name := range pins {
		if k.pins[id] == "" {
			k.pin(id, name)
			some = true
		}
	}
	return some
}

// stay are the pins of sandboxes that are still there; others are dropped.
func (k *known) stay() map[string]string {
	if k.unpinned() {
		return nil
	}
	there := map[string]bool{}
	for _, p := range k.possessions() {
		there[p.id] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.changes { // made since
		if c.kind == madeSandbox {
			there[c.sandbox.GetId()] = true
		}
	}
	maps.DeleteFunc(k.pins, func(id, _ string) bool { return !there[id] })
	return maps.Clone(k.pins)
}

// naming says by which of our names a sandbox goes.
type naming struct {
	names *names
	known *known
}

// sandbox is the name of one that the daemon says is of a handler of its own. Of a default
// one, or where it does not say, as CRI-O, it is the handler that the sandbox counts for.
func (n naming) sandbox(id, theirs string) string {
	if pin := n.known.pinned(id); pin != "" {
		return pin
	}
	if theirs == "" {
		return n.names.owner("")
	}
	return n.names.ours(theirs)
}

// list is a list of sandboxes with our names.
func (n naming) list(f frame) frame {
	return replaced(f, itemsField, func(item []byte) []byte {
		return withText(item, sandboxHandlerField, n.sandbox(text(item, idField), text(item, sandboxHandlerField)))
	})
}

// listAgain is list for lists that most often are as they were the last time.
func (n naming) listAgain(last *atomic.Pointer[renaming], f frame) frame {
	turn := n.known.pinsNow()
	t := n.names.current.Load()
	if l := last.Load(); l != nil && l.by == t && l.pins == turn && bytes.Equal(l.theirs, f) {
		return l.ours
	}
	ours := n.list(f)
	last.Store(&renaming{f, ours, t, turn})
	return ours
}

// status is the answer about one sandbox with our name.
func (n naming) status(f frame, id string) frame {
	return replaced(f, statusField, func(s []byte) []byte {
		return withText(s, statusHandlerField, n.sandbox(id, text(s, statusHandlerField)))
	})
}

// owner is the handler of ours that a pod counts as one of.
func (n naming) owner(p possession) string {
	if p.pin != "" {
		return p.pin
	}
	return n.names.owner(p.handler)
}

// inventory is what the daemon has, by our names.
func (n naming) inventory() []handler.Owned {
	possessions := n.known.possessions()
	all := make([]handler.Owned, 0, len(possessions))
	for _, p := range possessions {
		all = append(all, handler.Owned{Sandbox: p.id, Handler: n.owner(p), Containers: p.containers})
	}
	return all
}

// pinFor is the pin of a sandbox that is made under a handler of the daemon's,
// empty if it needs none: its daemon may leave the handler out of what it says, as CRI-O
// does, and must lead to the same one by both.
func (n naming) pinFor(ctx context.Context, theirs string) string {
	if d := handler.DefinitionFrom(ctx); d != nil && (n.names.owner(theirs) != d.Name || n.names.owner("") != d.Name) {
		return d.Name
	}
	return ""
}

// leaving are the pins of those whose name would be another with other handlers.
func (n naming) leaving(next []Handler) map[string]string {
	now, then := n.names.current.Load(), translationOf(next)
	if now == nil || slices.Equal(now.handlers, then.handlers) {
		return nil
	}
	pins := map[string]string{}
	for _, p := range n.known.possessions() {
		if our, there := now.ours[p.handler]; there && p.pin == "" && then.ours[p.handler] != our {
			pins[p.id] = our
		}
	}
	return pins
}
