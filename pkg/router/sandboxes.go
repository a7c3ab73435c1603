package router

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxes routes the lifecycle calls of sandboxes.
type sandboxes struct {
	starts *starts
	owners *owners
}

func (s sandboxes) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (resp *runtimeapi.RunPodSandboxResponse, err error) {
	check := func(ctx context.Context, b Backend) error { return preflight(ctx, b, req) }
	err = s.starts.run(ctx, req.GetRuntimeHandler(), req.GetConfig().GetMetadata().GetUid(), check, func(ctx context.Context, to *route, made func(id string)) (err error) {
		if resp, err = to.Backend.RunPodSandbox(ctx, req); err == nil {
			made(resp.GetPodSandboxId())
		}
		return err
	})
	return resp, err
}

// Preflighter is a Backend that can check, before anything is created, whether a handler can run a
// pod. The context carries the Definition. RunPodSandbox returns the same error; this method
// returns it before the pod waits in a queue.
type Preflighter interface {
	PreflightPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig) error
}

func preflight(ctx context.Context, b Backend, req *runtimeapi.RunPodSandboxRequest) error {
	if p, ok := b.(Preflighter); ok {
		return p.PreflightPodSandbox(ctx, req.GetConfig())
	}
	return nil
}

func (s sandboxes) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	resp, err := bySandbox(ctx, s.owners, req, Backend.StopPodSandbox)
	if unknown(err) {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	return resp, err
}

func (s sandboxes) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	resp, err := bySandbox(ctx, s.owners, req, Backend.RemovePodSandbox)
	if unknown(err) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err == nil {
		s.owners.dropSandbox(req.GetPodSandboxId())
	}
	return resp, err
}

func (s sandboxes) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	return bySandbox(ctx, s.owners, req, Backend.PodSandboxStatus)
}

func (s sandboxes) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return bySandbox(ctx, s.owners, req, Backend.UpdatePodSandboxResources)
}
