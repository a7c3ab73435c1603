package remote

import (
	"context"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
)

// checkpoints passes on freezing and thawing.
type checkpoints struct {
	*caller
	naming
	journal journal
	making  *atomic.Int64
}

func (c checkpoints) CheckpointContainer(ctx context.Context, req *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return passChange[runtimeapi.CheckpointContainerResponse](ctx, c.caller, runtimeapi.RuntimeService_CheckpointContainer_FullMethodName, req)
}

func (c checkpoints) CheckpointPod(ctx context.Context, req *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	return passChange[runtimeapi.CheckpointPodResponse](ctx, c.caller, runtimeapi.RuntimeService_CheckpointPod_FullMethodName, req)
}

func (c checkpoints) RestorePod(ctx context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	c.making.Add(1)
	defer c.making.Add(-1)
	asked := proto.CloneOf(req)
	if d := handler.DefinitionFrom(ctx); d != nil {
		asked.RuntimeHandler = c.names.remote(d.Name)
	}
	pin := c.pinFor(ctx, asked.GetRuntimeHandler())
	configs := map[string]*runtimeapi.ContainerConfig{}
	for i, config := range asked.GetContainerConfigs() {
		asked.ContainerConfigs[i] = c.names.config(config)
		configs[config.GetMetadata().GetName()] = asked.GetContainerConfigs()[i]
	}
	resp, err := readChange[runtimeapi.RestorePodResponse](ctx, c.caller, runtimeapi.RuntimeService_RestorePod_FullMethodName, asked)
	if err != nil {
		return nil, err
	}
	id := resp.GetPodSandboxId()
	c.journal.note(ctx, change{kind: madeSandbox, pin: pin, sandbox: runAs(id, asked.GetRuntimeHandler(), req.GetConfig())})
	for _, restored := range resp.GetRestoredContainers() {
		c.journal.note(ctx, change{kind: madeContainer, container: createdAs(restored.GetContainerId(), id, configs[restored.GetName()])})
	}
	return resp, nil
}
