package container

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"

	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// pluginNode is the engine as plugins may look at it and change it.
type PluginNode struct {
	Objects   *pod.Index
	Hooks     *hooks.Hooks
	Resources *Resources
}

func (n PluginNode) Pods() []nri.Subject {
	all := n.Objects.AllSandboxes()
	pods := make([]nri.Subject, 0, len(all))
	for _, s := range all {
		pods = append(pods, n.Hooks.Pod(s))
	}
	return pods
}

func (n PluginNode) Containers() []nri.Subject {
	all := n.Objects.AllContainers()
	containers := make([]nri.Subject, 0, len(all))
	for _, c := range all {
		containers = append(containers, n.Hooks.Container(c))
	}
	return containers
}

// UpdateContainer does what a plugin wants. One that ends meanwhile needs no
// limits any more; its lock is not waited for, as whoever has it may be waiting
// for plugins.
func (n PluginNode) UpdateContainer(ctx context.Context, id string, change *api.LinuxResources) error {
	c, err := n.Objects.Container(id)
	if errdefs.IsNotFound(err) || err == nil && c.Status().Phase == pod.PhaseExited {
		return nil
	}
	if err != nil {
		return err
	}
	err = n.Resources.changeResources(ctx, c, nri.ToCRI(change), nri.Pids(change))
	if errors.Is(err, pod.ErrEnded) {
		return nil
	}
	return err
}
