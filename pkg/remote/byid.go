package remote

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/wire"
)

// journal records the changes that calls made, before the calls return.
type journal interface {
	record(ctx context.Context, c lastknown.Change)
}

// sandboxes passes on the lifecycle calls of sandboxes.
type sandboxes struct {
	*caller
	naming
	journal  journal
	creating *atomic.Int64
}

func (s sandboxes) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	s.creating.Add(1)
	defer s.creating.Add(-1)
	asked := proto.CloneOf(req)
	if d := handler.DefinitionFrom(ctx); d != nil {
		asked.RuntimeHandler = s.names.remote(d.Name)
	}
	name := s.assignedFor(ctx, asked.GetRuntimeHandler())
	resp, err := readChange[runtimeapi.RunPodSandboxResponse](ctx, s.caller, runtimeapi.RuntimeService_RunPodSandbox_FullMethodName, asked)
	if err == nil && resp.GetPodSandboxId() == "" {
		err = s.missingID(runtimeapi.RuntimeService_RunPodSandbox_FullMethodName)
	}
	if err != nil {
		return nil, err
	}
	s.journal.record(ctx, lastknown.Change{Kind: lastknown.CreatedSandbox, Handler: name, Sandbox: listedSandbox(resp.GetPodSandboxId(), asked.GetRuntimeHandler(), req.GetConfig())})
	return resp, nil
}

// listedSandbox returns a new sandbox in the form of a list's item.
func listedSandbox(id, remoteHandler string, c *runtimeapi.PodSandboxConfig) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id: id, Metadata: c.GetMetadata(), State: runtimeapi.PodSandboxState_SANDBOX_READY,
		CreatedAt: time.Now().UnixNano(), Labels: c.GetLabels(), Annotations: c.GetAnnotations(), RuntimeHandler: remoteHandler,
	}
}

func (s sandboxes) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	resp, err := passChange[runtimeapi.StopPodSandboxResponse](ctx, s.caller, runtimeapi.RuntimeService_StopPodSandbox_FullMethodName, req)
	if err == nil {
		s.journal.record(ctx, lastknown.Change{Kind: lastknown.StoppedSandbox, ID: req.GetPodSandboxId()})
	}
	return resp, err
}

func (s sandboxes) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	resp, err := passChange[runtimeapi.RemovePodSandboxResponse](ctx, s.caller, runtimeapi.RuntimeService_RemovePodSandbox_FullMethodName, req)
	if err == nil {
		s.journal.record(ctx, lastknown.Change{Kind: lastknown.RemovedSandbox, ID: req.GetPodSandboxId()})
	}
	return resp, err
}

// mountNames are the paths to the names of handlers in the images of a sandbox's status.
var mountNames = wire.ImageHandlers(&runtimeapi.PodSandboxStatusResponse{})

func (s sandboxes) PodSandboxStatus(ctx context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	f, err := s.unary(ctx, runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName, req)
	f = s.naming.status(f, req.GetPodSandboxId())
	return carried[runtimeapi.PodSandboxStatusResponse](s.names.rename(f, mountNames...), err)
}

func (s sandboxes) UpdatePodSandboxResources(ctx context.Context, req *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return passChange[runtimeapi.UpdatePodSandboxResourcesResponse](ctx, s.caller, runtimeapi.RuntimeService_UpdatePodSandboxResources_FullMethodName, req)
}

// passRenamed is pass, with the names of handlers at paths in the answer translated.
func passRenamed[R any, P message[R]](ctx context.Context, c *caller, n *names, paths [][]protowire.Number, method string, req proto.Message) (P, error) {
	f, err := c.unary(ctx, method, req)
	return carried[R, P](n.rename(f, paths...), err)
}

// containers passes on the lifecycle calls of containers.
type containers struct {
	*caller
	names   *names
	journal journal
}

func (c containers) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	asked := proto.CloneOf(req)
	c.names.translate(asked.GetConfig())
	resp, err := readChange[runtimeapi.CreateContainerResponse](ctx, c.caller, runtimeapi.RuntimeService_CreateContainer_FullMethodName, asked)
	if err == nil && resp.GetContainerId() == "" {
		err = c.missingID(runtimeapi.RuntimeService_CreateContainer_FullMethodName)
	}
	if err != nil {
		return nil, err
	}
	c.journal.record(ctx, lastknown.Change{Kind: lastknown.CreatedContainer, Container: listedContainer(resp.GetContainerId(), req.GetPodSandboxId(), asked.GetConfig())})
	return resp, nil
}

// listedContainer returns a new container in the form of a list's item.
func listedContainer(id, sandbox string, config *runtimeapi.ContainerConfig) *runtimeapi.Container {
	return &runtimeapi.Container{
		Id: id, PodSandboxId: sandbox, Metadata: config.GetMetadata(), Image: config.GetImage(),
		ImageRef: config.GetImage().GetImage(), State: runtimeapi.ContainerState_CONTAINER_CREATED,
		CreatedAt: time.Now().UnixNano(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
	}
}

func (c containers) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	resp, err := passChange[runtimeapi.StartContainerResponse](ctx, c.caller, runtimeapi.RuntimeService_StartContainer_FullMethodName, req)
	if err == nil {
		c.journal.record(ctx, lastknown.Change{Kind: lastknown.StartedContainer, ID: req.GetContainerId()})
	}
	return resp, err
}

func (c containers) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	resp, err := passChange[runtimeapi.StopContainerResponse](ctx, c.caller, runtimeapi.RuntimeService_StopContainer_FullMethodName, req)
	if err == nil {
		c.journal.record(ctx, lastknown.Change{Kind: lastknown.StoppedContainer, ID: req.GetContainerId()})
	}
	return resp, err
}

func (c containers) RemoveContainer(ctx context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	resp, err := passChange[runtimeapi.RemoveContainerResponse](ctx, c.caller, runtimeapi.RuntimeService_RemoveContainer_FullMethodName, req)
	if err == nil {
		c.journal.record(ctx, lastknown.Change{Kind: lastknown.RemovedContainer, ID: req.GetContainerId()})
	}
	return resp, err
}

var containerStatusNames = wire.ImageHandlers(&runtimeapi.ContainerStatusResponse{})

func (c containers) ContainerStatus(ctx context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	return passRenamed[runtimeapi.ContainerStatusResponse](ctx, c.caller, c.names, containerStatusNames, runtimeapi.RuntimeService_ContainerStatus_FullMethodName, req)
}

func (c containers) UpdateContainerResources(ctx context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return passChange[runtimeapi.UpdateContainerResourcesResponse](ctx, c.caller, runtimeapi.RuntimeService_UpdateContainerResources_FullMethodName, req)
}

func (c containers) ReopenContainerLog(ctx context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	return pass[runtimeapi.ReopenContainerLogResponse](ctx, c.caller, runtimeapi.RuntimeService_ReopenContainerLog_FullMethodName, req)
}

// checkpoints passes on calls that checkpoint or restore pods and containers.
type checkpoints struct {
	*caller
	naming
	journal  journal
	creating *atomic.Int64
}

func (c checkpoints) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return passChange[runtimeapi.CheckpointContainerResponse](ctx, c.caller, runtimeapi.RuntimeService_CheckpointContainer_FullMethodName, req)
}

func (c checkpoints) CheckpointPod(ctx context.Context, req *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	return passChange[runtimeapi.CheckpointPodResponse](ctx, c.caller, runtimeapi.RuntimeService_CheckpointPod_FullMethodName, req)
}

func (c checkpoints) RestorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	c.creating.Add(1)
	defer c.creating.Add(-1)
	asked := proto.CloneOf(req)
	if d := handler.DefinitionFrom(ctx); d != nil {
		asked.RuntimeHandler = c.names.remote(d.Name)
	}
	name := c.assignedFor(ctx, asked.GetRuntimeHandler())
	configs := map[string]*runtimeapi.ContainerConfig{}
	for _, config := range asked.GetContainerConfigs() {
		c.names.translate(config)
		configs[config.GetMetadata().GetName()] = config
	}
	resp, err := readChange[runtimeapi.RestorePodResponse](ctx, c.caller, runtimeapi.RuntimeService_RestorePod_FullMethodName, asked)
	if err != nil {
		return nil, err
	}
	id := resp.GetPodSandboxId()
	c.journal.record(ctx, lastknown.Change{Kind: lastknown.CreatedSandbox, Handler: name, Sandbox: listedSandbox(id, asked.GetRuntimeHandler(), req.GetConfig())})
	for _, restored := range resp.GetRestoredContainers() {
		c.journal.record(ctx, lastknown.Change{Kind: lastknown.CreatedContainer, Container: listedContainer(restored.GetContainerId(), id, configs[restored.GetName()])})
	}
	return resp, nil
}
