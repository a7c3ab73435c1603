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
	l := &logs{pods: d.Pods, shims: d.Shims}
	e := &ends{
		pods: d.Pods, binaries: d.Binaries, tasks: d.Tasks, rootfs: d.Rootfs, hooks: d.Hooks, events: d.Events,
	}
	specs := &specifier{
		pods: d.Pods, settings: d.Settings, binaries: d.Binaries, rootfs: d.Rootfs, hooks: d.Hooks, cdiDirs: d.CDISpecDirs,
	}
	return &Service{
		ends: e,
		Calls: Calls{
			logs:  l,
			views: &views{pods: d.Pods, binaries: d.Binaries},
			creation: &creation{
				pods: d.Pods, binaries: d.Binaries, tasks: d.Tasks, capabilities: d.Capabilities, rootfs: d.Rootfs,
				events: d.Events, hooks: d.Hooks, images: d.Images, specs: specs, ends: e,
			},
			starts:      &starts{pods: d.Pods, binaries: d.Binaries, tasks: d.Tasks, events: d.Events, hooks: d.Hooks, ends: e},
			stops:       &stops{pods: d.Pods, binaries: d.Binaries, tasks: d.Tasks, events: d.Events, hooks: d.Hooks, ends: e},
			resizing:    &resizing{pods: d.Pods, hooks: d.Hooks, resources: d.Resources},
			checkpoints: &checkpoints{pods: d.Pods, binaries: d.Binaries, capabilities: d.Capabilities, dumper: criu.New(d.Pods, d.Tasks, d.Images)},
		},
	}
}
