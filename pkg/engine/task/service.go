// Package task speaks with who runs the tasks of pods: supervisors of OCI runtimes, and
// foreign shims. It creates, starts, kills and deletes tasks, learns of their exits, and
// cleans up after shims that died.
package task

import (
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// Service is all that is done with tasks.
type Service struct {
	*Tasks
	*Exits
	*LostShims
}

// New gives the tasks of pods, which shims run.
func New(pods *pod.Registry, s *settings.Settings, b *binaries.Binaries, shims *shim.Manager) *Service {
	t := NewTasks(pods, s, b, shims)
	lost := &LostShims{pods: pods, settings: s, binaries: b, shims: shims}
	return &Service{t, &Exits{pods: pods, tasks: t, burials: lost, journals: shims}, lost}
}
