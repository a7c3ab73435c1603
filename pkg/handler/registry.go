package handler

import "sync/atomic"

// Registry holds the current table behind one atomic pointer. All methods may
// be called at any time from any goroutine.
type Registry[B any] struct {
	current atomic.Pointer[Table[B]]
}

// EmptyTable is that of a node whose handlers are not known yet. Its generation is 0, and
// nothing can be routed by it.
func EmptyTable[B any]() *Table[B] { return &Table[B]{byName: map[string]*Route[B]{}} }

// NewRegistry makes a registry whose current table is t, which must not be nil.
func NewRegistry[B any](t *Table[B]) *Registry[B] {
	r := &Registry[B]{}
	r.current.Store(t)
	return r
}

// Current returns the table that new calls are routed by. A call takes it once
// and keeps it to its end, whatever is swapped in meanwhile.
func (r *Registry[B]) Current() *Table[B] { return r.current.Load() }

// Swap makes next the current table and returns the one it replaces.
func (r *Registry[B]) Swap(next *Table[B]) (previous *Table[B]) { return r.current.Swap(next) }
