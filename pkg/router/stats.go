package router

import (
	"context"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// stats routes the statistics and metrics of sandboxes and containers.
type stats struct {
	owners *owners
}

func (s stats) ContainerStats(ctx context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return byContainer(ctx, s.owners, req, Backend.ContainerStats)
}

func (s stats) ListContainerStats(ctx context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	if err := s.owners.completeContainerFilter(req.GetFilter()); err != nil {
		return nil, err
	}
	return gather(ctx, s.owners.all(), req, Backend.ListContainerStats, concatenated)
}

func (s stats) StreamContainerStats(req *runtimeapi.StreamContainerStatsRequest, to grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	list, err := s.ListContainerStats(to.Context(), alike(&runtimeapi.ListContainerStatsRequest{Filter: req.GetFilter()}, req))
	return stream(list, err, to)
}

func (s stats) PodSandboxStats(ctx context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	return bySandbox(ctx, s.owners, req, Backend.PodSandboxStats)
}

func (s stats) ListPodSandboxStats(ctx context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	if err := s.owners.completeSandboxFilter(req.GetFilter()); err != nil {
		return nil, err
	}
	return gather(ctx, s.owners.all(), req, Backend.ListPodSandboxStats, concatenated)
}

func (s stats) StreamPodSandboxStats(req *runtimeapi.StreamPodSandboxStatsRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
	list, err := s.ListPodSandboxStats(to.Context(), alike(&runtimeapi.ListPodSandboxStatsRequest{Filter: req.GetFilter()}, req))
	return stream(list, err, to)
}
