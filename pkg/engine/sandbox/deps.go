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

// Deps are the dependencies of Service.
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

// networks connects pods, and releases their addresses.
type networks interface {
	Ready(ctx context.Context) error
	Setup(ctx context.Context, pod network.Pod) (*network.Result, error)
	Teardown(ctx context.Context, pod network.Pod, was *network.Result) error
}

// supervisors counts the pods of supervisors: a supervisor lives as long as a pod holds it.
type supervisors interface {
	Hold(key string)
	Release(key string)
}

type containers interface {
	End(ctx context.Context, c *pod.Container) error
	Remove(ctx context.Context, c *pod.Container) error
}
