// Package container creates, starts, stops, changes and removes containers, and knows what
// follows their exit.
package container

import "github.com/berth-cri/berth/pkg/engine/criu"

// Calls are those of the CRI about containers.
type Calls struct {
	*views
	*creation
	*starts
	*stops
	*upkeep
	*checkpoints
}

// Service is all that is done with containers.
type Service struct {
	Calls
	*ends
}

// New serves the containers of pods.
func New(d Deps) *Service {
	e := &ends{d}
	return &Service{ends: e, Calls: Calls{
		views: &views{d}, creation: &creation{d, &specifier{d}, e}, starts: &starts{d, e}, stops: &stops{d, e},
		upkeep: &upkeep{d}, checkpoints: &checkpoints{d, criu.New(d.Pods, d.Tasks, d.Images)},
	}}
}
