// Package sandbox runs, stops, changes and removes pod sandboxes.
package sandbox

import (
	"context"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/settings"
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
	Network      networks
	Shims        supervisors
	Containers   containers
}

// networks connects pods, and gives their addresses back.
type networks interface {
	Ready(ctx context.Context) error
	Setup(ctx context.Context, pod network.Pod) (*network.Result, error)
	Teardown(ctx context.Context, pod network.Pod, was *network.Result) error
}

// supervisors are kept as long as a pod holds them.
type supervisors interface {
	Hold(key string)
	Release(key string)
}

// containers are those of pods.
type containers interface {
	End(ctx context.Context, c *pod.Container) error
	Remove(ctx context.Context, c *pod.Container) error
}

// New serves the sandboxes of a node.
func New(d Deps) *Service {
	p := &processes{d}
	s := &stops{d, p}
	return &Service{Calls{&views{d}, &runs{d, p, s}, s, &resizing{d}}, p}
}
