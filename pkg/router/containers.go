package router

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containers routes the lifecycle calls of containers.
type containers struct {
	owners  *owners
	counter *startCounter
}

// CreateContainer creates a container on the sandbox's backend and records its owner, both with the
// sandbox's full ID.
func (c containers) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return bySandbox(ctx, c.owners, req,
		func(b Backend, ctx context.Context, req *runtimeapi.CreateContainerRequest) (resp *runtimeapi.CreateContainerResponse, err error) {
			err = c.owners.create(b, func() (err error) {
				if resp, err = b.CreateContainer(ctx, req); err == nil {
					err = c.owners.addContainer(resp.GetContainerId(), req.GetPodSandboxId())
				}
				return err
			})
			c.counter.ended(c.owners.sandboxes.get(req.GetPodSandboxId()), false, err, false)
			return resp, err
		})
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

// execs routes calls that run a process in a container, or connect to a container or pod.
type execs struct {
	owners *owners
}

func (e execs) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return byContainer(ctx, e.owners, req, Backend.ExecSync)
}

func (e execs) Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return byContainer(ctx, e.owners, req, Backend.Exec)
}

func (e execs) Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return byContainer(ctx, e.owners, req, Backend.Attach)
}

func (e execs) PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return bySandbox(ctx, e.owners, req, Backend.PortForward)
}

// checkpoints routes calls that checkpoint or restore pods and containers.
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
		if owner != nil { // if nil, the backend returns the error: the sandbox has no such container
			req.ContainerIds[i] = owner.ID
		}
	}
	return bySandbox(ctx, c.owners, req, Backend.CheckpointPod)
}

// RestorePod creates a sandbox with containers, and is routed like a new sandbox.
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
