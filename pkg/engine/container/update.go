package container

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/validate"
)

// resizing serves the call that changes the limits of a container, in which plugins
// have a say.
type resizing struct{ Deps }

// UpdateContainerResources changes the limits of a container. What the request
// leaves at zero stays. If the runtime refuses, or the change cannot be recorded,
// the old limits are put back.
func (b *resizing) UpdateContainerResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	if err := validate.UpdateContainerResources(r); err != nil {
		return nil, err
	}
	c, err := b.Pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Status().Phase == pod.PhaseExited {
		return nil, c.Ended()
	}
	change, pids := r.GetLinux(), (*int64)(nil)
	wanted, err := b.Hooks.Plugins.UpdateContainer(ctx, b.Hooks.Container(c), change)
	if err != nil {
		return nil, err
	}
	if wanted != nil {
		change, pids = nri.ToCRI(wanted), nri.Pids(wanted)
	}
	if err := b.Resources.changeResources(ctx, c, change, pids); err != nil {
		return nil, err
	}
	b.Hooks.Plugins.PostUpdateContainer(ctx, b.Hooks.Container(c))
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}
