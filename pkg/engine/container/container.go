// Package container creates, starts, stops, updates and removes containers, and handles their
// exits.
package container

import "github.com/berth-cri/berth/pkg/engine/criu"

// Calls implements the CRI's calls for containers.
type Calls struct {
	*views
	*creation
	*starts
	*stops
	*upkeep
	*checkpoints
}

// Service implements the CRI's calls for containers, and handles their exits.
type Service struct {
	Calls
	*ends
}

// New returns the Service of the containers in d.Pods.
func New(d Deps) *Service {
	e := &ends{d}
	return &Service{ends: e, Calls: Calls{
		views: &views{d}, creation: &creation{d, &specifier{d}, e}, starts: &starts{d, e}, stops: &stops{d, e},
		upkeep: &upkeep{d}, checkpoints: &checkpoints{d, criu.New(d.Pods, d.Tasks, d.Images)},
	}}
}
