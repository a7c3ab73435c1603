// Package sandbox runs, stops, changes and removes pod sandboxes.
package sandbox

import (
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

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

// Deps are what sandboxes are made of and with.
type Deps struct {
	Pods         *pod.Registry
	Settings     *settings.Settings
	Binaries     *binaries.Binaries
	Tasks        *task.Service
	Capabilities *capabilities.Checker
	Rootfs       *rootfs.Mounts
	Events       *events.Announcer
	Hooks        *hooks.Hooks
	Network      *network.Plugins
	Shims        *shim.Manager
	Containers   *container.Service
}

// New serves the sandboxes of a node.
func New(d Deps) *Service {
	p := &processes{pods: d.Pods, settings: d.Settings, binaries: d.Binaries, tasks: d.Tasks, events: d.Events}
	s := &stops{
		pods: d.Pods, binaries: d.Binaries, rootfs: d.Rootfs, events: d.Events, hooks: d.Hooks,
		network: d.Network, shims: d.Shims, processes: p, inside: d.Containers,
	}
	return &Service{
		processes: p,
		Calls: Calls{
			views: &views{pods: d.Pods, binaries: d.Binaries},
			runs: &runs{
				pods: d.Pods, settings: d.Settings, binaries: d.Binaries, capabilities: d.Capabilities, events: d.Events, hooks: d.Hooks,
				tasks: d.Tasks, cni: d.Network, shims: d.Shims, processes: p, stops: s,
			},
			stops:    s,
			resizing: &resizing{pods: d.Pods, hooks: d.Hooks},
		},
	}
}
