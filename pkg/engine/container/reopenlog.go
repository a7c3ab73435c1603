package container

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/task"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// logs are written by supervisors, also for foreign shims, which do not know the
// CRI's format.
type logs struct{ Deps }

// ReopenContainerLog makes the log's writer go on in a new file at the log's
// path. When it answers, that file exists.
func (b *logs) ReopenContainerLog(ctx context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	c, err := b.Pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Status().Phase != pod.PhaseRunning {
		return nil, fmt.Errorf("container %s is not running, so its log is not open: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	// Foreign shims' logs are written by a supervisor as well.
	writer, err := b.Shims.Supervisor(ctx, c.Sandbox.Spec().Supervisor)
	if err != nil {
		return nil, err
	}
	if _, err := writer.Supervisor.ReopenLog(ctx, &supervisorapi.ReopenLogRequest{Id: c.ID()}); err != nil {
		return nil, fmt.Errorf("reopen log: %w", task.FromShim(err))
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
