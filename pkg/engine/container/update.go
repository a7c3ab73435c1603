package container

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// upkeep serves the calls that change an existing container: its limits, which plugins may change
// as well, and its log file.
type upkeep struct{ Deps }

// UpdateContainerResources changes the limits of a container. Zero fields of the request change
// nothing. If the runtime refuses, or the change cannot be recorded, the old limits are restored.
func (b *upkeep) UpdateContainerResources(ctx context.Context, r *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
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

// ReopenContainerLog makes the log's writer continue in a new file at the log's path, which exists
// when the call returns.
func (b *upkeep) ReopenContainerLog(ctx context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := b.Pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Status().Phase != pod.PhaseRunning {
		return nil, fmt.Errorf("container %s is not running, so its log is not open: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	// A supervisor also writes the logs of foreign shims.
	writer, err := b.Shims.Supervisor(ctx, c.Sandbox.Spec().Supervisor)
	if err != nil {
		return nil, err
	}
	if _, err := writer.Supervisor.ReopenLog(ctx, &supervisorapi.ReopenLogRequest{Id: c.ID()}); err != nil {
		return nil, fmt.Errorf("reopen log: %w", task.FromShim(err))
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
