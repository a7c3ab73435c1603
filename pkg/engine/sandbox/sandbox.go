// Package sandbox runs, stops, changes and removes pod sandboxes.
package sandbox

// Calls are those of the CRI about pod sandboxes.
type Calls struct {
	*views
	*runs
	*stops
	*resizing
}

// Service is all that is done with sandboxes.
type Service struct {
	Calls
	*processes
}

// New serves the sandboxes of a node.
func New(d Deps) *Service {
	p := &processes{d}
	s := &stops{d, p}
	return &Service{Calls{&views{d}, &runs{d, p, s}, s, &resizing{d}}, p}
}
