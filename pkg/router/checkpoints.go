package router

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// checkpoints routes freezing and thawing.
type checkpoints struct {
	starts *starts
	owners *owners
}

func (c checkpoints) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return byContainer(ctx, c.owners, req, Backend.CheckpointContainer)
}

func (c checkpoints) CheckpointPod(ctx context.Context, req *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	for i, id := range req.GetContainerIds() {
		owner, err := c.owners.containers.resolve(id)
		if err != nil {
			return nil, err
		}
		if owner != nil { // which of its containers a sandbox does not have says the backend
			req.ContainerIds[i] = owner.ID
		}
	}
	return bySandbox(ctx, c.owners, req, Backend.CheckpointPod)
}

// RestorePod makes a sandbox with containers, and is routed like a new one.
func (c checkpoints) RestorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (resp *runtimeapi.RestorePodResponse, err error) {
	err = c.starts.run(ctx, req.GetRuntimeHandler(), req.GetConfig().GetMetadata().GetUid(), nil, func(ctx context.Context, to *route, made func(id string)) (err error) {
		if resp, err = to.Backend.RestorePod(ctx, req); err == nil {
			made(resp.GetPodSandboxId())
			for _, restored := range resp.GetRestoredContainers() {
				if err := c.owners.addContainer(restored.GetContainerId(), resp.GetPodSandboxId()); err != nil {
					return err
				}
			}
		}
		return err
	})
	return resp, err
}
