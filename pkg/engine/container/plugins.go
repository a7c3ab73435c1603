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
type pluginNode struct {
	pods      *pod.Registry
	subjects  *hooks.Subjects
	resources *Resources
}

// NewPluginNode shows plugins the pods of a node, and lets them change resources.
func NewPluginNode(pods *pod.Registry, s *hooks.Subjects, r *Resources) nri.Node {
	return pluginNode{pods, s, r}
}

func (n pluginNode) Pods() []nri.Subject {
	all := n.pods.Index.AllSandboxes()
	pods := make([]nri.Subject, 0, len(all))
	for _, s := range all {
		pods = append(pods, n.subjects.Pod(s))
	}
	return pods
}

func (n pluginNode) Containers() []nri.Subject {
	all := n.pods.Index.AllContainers()
	containers := make([]nri.Subject, 0, len(all))
	for _, c := range all {
		containers = append(containers, n.subjects.Container(c))
	}
	return containers
}

// UpdateContainer does what a plugin wants. One that ends meanwhile needs no
// limits any more; its lock is not waited for, as whoever has it may be waiting
// for plugins.
func (n pluginNode) UpdateContainer(ctx context.Context, id string, change *api.LinuxResources) error {
	c, err := n.pods.Index.Container(id)
	if errdefs.IsNotFound(err) || err == nil && c.Status().Phase == pod.PhaseExited {
		return nil
	}
	if err != nil {
		return err
	}
	err = n.resources.changeResources(ctx, c, nri.ToCRI(change), nri.Pids(change))
	if errors.Is(err, pod.ErrEnded) {
		return nil
	}
	return err
}
