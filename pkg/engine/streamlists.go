package engine

import (
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/chunk"
)

// The streaming twins of the list calls. Each takes its whole list first, and
// holds nothing while it sends: a client may be slow. StreamImages is the image
// service's. A kubelet that misses one of the six asks for none of them.

// StreamPodSandboxes is ListPodSandbox in messages of bounded size.
func (b *sandboxViews) StreamPodSandboxes(r *runtimeapi.StreamPodSandboxesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	return chunk.Send(b.list(r.GetFilter()), func(part []*runtimeapi.PodSandbox) error {
		return to.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: part})
	})
}

// StreamContainers is ListContainers in messages of bounded size.
func (b *containerViews) StreamContainers(r *runtimeapi.StreamContainersRequest, to grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return chunk.Send(b.list(r.GetFilter()), func(part []*runtimeapi.Container) error {
		return to.Send(&runtimeapi.StreamContainersResponse{Containers: part})
	})
}

// StreamContainerStats is ListContainerStats in messages of bounded size.
func (b stats) StreamContainerStats(r *runtimeapi.StreamContainerStatsRequest, to grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	return chunk.Send(b.list(to.Context(), r.GetFilter()), func(part []*runtimeapi.ContainerStats) error {
		return to.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: part})
	})
}

// StreamPodSandboxStats is ListPodSandboxStats in messages of bounded size.
func (b stats) StreamPodSandboxStats(r *runtimeapi.StreamPodSandboxStatsRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
	return chunk.Send(b.listPods(to.Context(), r.GetFilter()), func(part []*runtimeapi.PodSandboxStats) error {
		return to.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: part})
	})
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics in messages of bounded size.
func (b stats) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse]) error {
	return chunk.Send(b.listMetrics(to.Context()), func(part []*runtimeapi.PodSandboxMetrics) error {
		return to.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: part})
	})
}
