// Package sandbox runs, stops, updates and removes pod sandboxes.
package sandbox

// Calls implements the CRI's calls for pod sandboxes.
type Calls struct {
	*views
	*runs
	*stops
	*resizing
}

// Service implements the CRI's calls for pod sandboxes, and manages their processes.
type Service struct {
	Calls
	*processes
}

// New returns the Service of the sandboxes in d.Pods.
func New(d Deps) *Service {
	p := &processes{d}
	s := &stops{d, p}
	return &Service{Calls{&views{d}, &runs{d, p, s}, s, &resizing{d}}, p}
}
