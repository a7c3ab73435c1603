package router

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxes routes the life of sandboxes.
type sandboxes struct {
	routes routes
	owners *owners
}

func (s sandboxes) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	ctx, to, err := s.routes.forPod(ctx, req.GetRuntimeHandler())
	if err != nil {
		return nil, err
	}
	name := to.Definition.Name
	var resp *runtimeapi.RunPodSandboxResponse
	err = s.owners.create(to.Backend, func() (err error) {
		if resp, err = to.Backend.RunPodSandbox(ctx, req); err == nil {
			s.owners.addSandbox(resp.GetPodSandboxId(), name, to.Backend)
		}
		return err
	})
	return resp, named(name, err)
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
