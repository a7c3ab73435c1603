package router

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// lists routes what shows all sandboxes and containers.
type lists struct {
	owners *owners
}

func (l lists) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	if err := l.owners.completeSandboxFilter(req.GetFilter()); err != nil {
		return nil, err
	}
	return gather(ctx, l.owners.all(), req, Backend.ListPodSandbox,
		func(all []*runtimeapi.ListPodSandboxResponse) *runtimeapi.ListPodSandboxResponse {
			merged := &runtimeapi.ListPodSandboxResponse{}
			for _, a := range all {
				merged.Items = append(merged.Items, a.GetItems()...)
				addUnread(merged, a)
			}
			return merged
		})
}

func (l lists) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	if err := l.owners.completeSandboxFilter(req.GetFilter()); err != nil {
		return err
	}
	return gatherStream(l.owners.all(), req, to, Backend.StreamPodSandboxes)
}

func (l lists) ListContainers(ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	if err := l.owners.completeContainerFilter(req.GetFilter()); err != nil {
		return nil, err
	}
	return gather(ctx, l.owners.all(), req, Backend.ListContainers,
		func(all []*runtimeapi.ListContainersResponse) *runtimeapi.ListContainersResponse {
			merged := &runtimeapi.ListContainersResponse{}
			for _, a := range all {
				merged.Containers = append(merged.Containers, a.GetContainers()...)
				addUnread(merged, a)
			}
			return merged
		})
}

func (l lists) StreamContainers(req *runtimeapi.StreamContainersRequest, to grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	if err := l.owners.completeContainerFilter(req.GetFilter()); err != nil {
		return err
	}
	return gatherStream(l.owners.all(), req, to, Backend.StreamContainers)
}
