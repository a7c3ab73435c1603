package router

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containers routes the life of containers.
type containers struct {
	routes  routes
	owners  *owners
	pulls   *pulls
	counter *variantCounter
}

// CreateContainer creates a container on the sandbox's backend and records its
// owner. The backend gets, and the record is by, the sandbox's full id.
func (c containers) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return bySandbox(ctx, c.owners, req,
		func(b Backend, ctx context.Context, req *runtimeapi.CreateContainerRequest) (resp *runtimeapi.CreateContainerResponse, err error) {
			provided, err := c.provide(ctx, b, req)
			if err != nil {
				return nil, err
			}
			err = c.owners.create(b, func() (err error) {
				if resp, err = b.CreateContainer(ctx, provided); err == nil {
					err = c.owners.addContainer(resp.GetContainerId(), req.GetPodSandboxId())
				}
				return err
			})
			c.counter.ended(c.owners.sandboxes.get(req.GetPodSandboxId()), false, err, false)
			return resp, err
		})
}

// provide is the request with images that the backend has.
func (c containers) provide(ctx context.Context, b Backend, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerRequest, error) {
	if len(c.owners.all()) < 2 {
		return req, nil
	}
	ctx, err := c.routes.asImage(ctx, c.owners.sandboxes.get(req.GetPodSandboxId()).handlerName())
	if err != nil {
		return nil, err
	}
	s := supply{pulls: c.pulls, stores: c.owners.all(), to: b, sandbox: req.GetPodSandboxId(), config: req.GetSandboxConfig()}
	return s.provide(ctx, req)
}

func (c containers) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	return byContainer(ctx, c.owners, req,
		func(b Backend, ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
			o := c.owners.containers.get(req.GetContainerId())
			if o == nil {
				return b.StartContainer(ctx, req)
			}
			ended := c.counter.watch(ctx, o.Handler, o.Attempt)
			resp, err := b.StartContainer(ctx, req)
			c.counter.ended(o, true, err, ended())
			return resp, err
		})
}

func (c containers) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	resp, err := byContainer(ctx, c.owners, req, Backend.StopContainer)
	if unknown(err) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	return resp, err
}

func (c containers) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	resp, err := byContainer(ctx, c.owners, req, Backend.RemoveContainer)
	if unknown(err) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err == nil {
		c.owners.dropContainer(req.GetContainerId())
	}
	return resp, err
}

func (c containers) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return byContainer(ctx, c.owners, req, Backend.ContainerStatus)
}

func (c containers) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return byContainer(ctx, c.owners, req, Backend.UpdateContainerResources)
}

func (c containers) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return byContainer(ctx, c.owners, req, Backend.ReopenContainerLog)
}
