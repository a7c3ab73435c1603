package nri

import "github.com/containerd/nri/pkg/api"

// stage is how much of an object's life plugins were told of. The zero value is
// nothing, or everything: they do not know it (any more).
type stage int

const (
	unknown stage = iota
	created
	running
	stopped
)

// mayStop tells whether plugins are yet to be told of the end.
func (s stage) mayStop() bool { return s == created || s == running }

// mayRemove tells whether plugins still know the object.
func (s stage) mayRemove() bool { return s != unknown }

// stageOf is what plugins know of a container that they are told the state of.
func stageOf(s api.ContainerState) stage {
	switch s {
	case api.ContainerState_CONTAINER_CREATED:
		return created
	case api.ContainerState_CONTAINER_RUNNING, api.ContainerState_CONTAINER_PAUSED:
		return running
	case api.ContainerState_CONTAINER_STOPPED:
		return stopped
	}
	return unknown
}

// set needs p.mu.
func (p *Plugins) set(id string, s stage) {
	if s == unknown {
		delete(p.stages, id)
		return
	}
	p.stages[id] = s
}
