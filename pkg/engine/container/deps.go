package container

import (
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
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
	Images       *image.Store
	Shims        *shim.Manager
	Resources    *Resources
	// CDISpecDirs are the directories of CDI specs.
	CDISpecDirs []string
}
