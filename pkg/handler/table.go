package handler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

// Route maps a handler's name to the backend of its pods. B is the router's Backend. A Route in a
// Table is never changed.
type Route[B any] struct {
	// Backend runs the handler's pods.
	Backend B
	// Definition is the handler's configuration; its Name is the route's name.
	Definition *Definition
	// Candidate is the Definition for Definition.Candidate.Percent percent of new pods; nil without
	// a running rollout.
	Candidate *Definition
	// State decides whether new pods are accepted.
	State State
	// Generation is that of the first table with this route; NewTable replaces zero by its own.
	Generation uint64
}

// Table holds the routes of one generation. It is immutable, so any number of goroutines may read
// it.
type Table[B any] struct {
	generation  uint64
	defaultName string
	// byName also has the default route under "".
	byName map[string]*Route[B]
	// routes are sorted by name.
	routes []*Route[B]
}

// NewTable returns a table of routes. defaultName must be one of them. All mistakes are returned
// together, of the class ErrInvalidArgument.
func NewTable[B any](generation uint64, defaultName string, routes []Route[B]) (*Table[B], error) {
	t := &Table[B]{generation: generation, defaultName: defaultName, byName: make(map[string]*Route[B], len(routes)+1)}
	var mistakes []error
	for _, r := range routes {
		if err := t.add(r); err != nil {
			mistakes = append(mistakes, err)
		}
	}
	if standard, ok := t.byName[defaultName]; ok {
		t.byName[""] = standard
	} else {
		mistakes = append(mistakes, fmt.Errorf("the default handler %q is not in the table: %w", defaultName, errdefs.ErrInvalidArgument))
	}
	if err := errors.Join(mistakes...); err != nil {
		return nil, err
	}
	slices.SortFunc(t.routes, func(a, b *Route[B]) int { return strings.Compare(a.Definition.Name, b.Definition.Name) })
	return t, nil
}

func (t *Table[B]) add(r Route[B]) error {
	if r.Definition == nil {
		return fmt.Errorf("the route has no definition: %w", errdefs.ErrInvalidArgument)
	}
	name := r.Definition.Name
	if err := ValidName(name); err != nil {
		return err
	}
	if _, dup := t.byName[name]; dup {
		return fmt.Errorf("duplicate handler %q in the table: %w", name, errdefs.ErrInvalidArgument)
	}
	r.Generation = cmp.Or(r.Generation, t.generation)
	t.byName[name] = &r
	t.routes = append(t.routes, &r)
	return nil
}

// Lookup returns the route of a handler name; "" is the default handler. It takes no lock and
// allocates nothing.
func (t *Table[B]) Lookup(name string) (*Route[B], bool) {
	r, ok := t.byName[name]
	return r, ok
}

// Default returns the name of the default handler.
func (t *Table[B]) Default() string { return t.defaultName }

// Generation returns the number of this table; later tables have higher ones.
func (t *Table[B]) Generation() uint64 { return t.generation }

// Names returns the names of all handlers, sorted.
func (t *Table[B]) Names() (names []string) {
	for _, r := range t.routes {
		names = append(names, r.Definition.Name)
	}
	return names
}

// Routes returns all routes, sorted by name. The slice is the caller's; the routes are shared and
// must not be changed.
func (t *Table[B]) Routes() []*Route[B] { return slices.Clone(t.routes) }

// maxListed bounds the bytes of the names in an error, so that the error stays below 1 KiB with any
// number of handlers.
const maxListed = 400

func (t *Table[B]) accepting() (names []string) {
	for _, r := range t.routes {
		if r.State.AcceptsPods() {
			names = append(names, r.Definition.Name)
		}
	}
	return names
}

func (t *Table[B]) list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, n := range names {
		if b.Len()+len(n) > maxListed {
			fmt.Fprintf(&b, " and %d more", len(names)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(n)
		if n == t.defaultName {
			b.WriteString(" (default)")
		}
	}
	return b.String()
}

// Registry holds the current table behind one atomic pointer. All methods may
// be called at any time from any goroutine.
type Registry[B any] struct {
	current atomic.Pointer[Table[B]]
}

// EmptyTable returns the table of a node before its handlers are known. Its generation is 0, and it
// routes nothing.
func EmptyTable[B any]() *Table[B] { return &Table[B]{byName: map[string]*Route[B]{}} }

// NewRegistry returns a registry with the current table t, which must not be nil.
func NewRegistry[B any](t *Table[B]) *Registry[B] {
	r := &Registry[B]{}
	r.current.Store(t)
	return r
}

// Current returns the table for new calls. A call takes it once and keeps it to its end, even if
// the table is swapped meanwhile.
func (r *Registry[B]) Current() *Table[B] { return r.current.Load() }

// Swap makes next the current table and returns the replaced one.
func (r *Registry[B]) Swap(next *Table[B]) (previous *Table[B]) { return r.current.Swap(next) }
