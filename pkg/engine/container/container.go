// Package container creates, starts, stops, changes and removes containers, and knows what
// follows their exit.
package container

import (
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/criu"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// Calls are those of the CRI about containers.
type Calls struct {
	*views
	*creation
	*starts
	*stops
	*resizing
	*checkpoints
	*logs
}

// Service is all that is done with containers.
type Service struct {
	Calls
	*ends
}

// Deps are what containers are made of and with.
type Deps struct {
	Pods         *pod.Registry
	Settings     *settings.Settings
	Binaries     *binaries.Binaries
	Tasks        *task.Service
	Capabilities *capabilities.Checker
	Rootfs       *rootfs.Mounts
	Events       *events.Announcer
	Hooks        *hooks.Hooks
	Images       *image.Store
	Shims        *shim.Manager
	Resources    *Resources
	// CDISpecDirs are where specs of devices are.
	CDISpecDirs []string
}

// New serves the containers of pods.
func New(d Deps) *Service {
	e := &ends{d}
	return &Service{ends: e, Calls: Calls{
		logs: &logs{d}, views: &views{d}, creation: &creation{d, &specifier{d}, e}, starts: &starts{d, e}, stops: &stops{d, e},
		resizing: &resizing{d}, checkpoints: &checkpoints{d, criu.New(d.Pods, d.Tasks, d.Images)},
	}}
}
