package remote

import (
	"context"
	"time"

	"github.com/containerd/log"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/wire"
)

var (
	containerStatsLists = listingOf(runtimeapi.RuntimeService_ListContainerStats_FullMethodName, runtimeapi.RuntimeService_StreamContainerStats_FullMethodName, &runtimeapi.ListContainerStatsResponse{})
	sandboxStatsLists   = listingOf(runtimeapi.RuntimeService_ListPodSandboxStats_FullMethodName, runtimeapi.RuntimeService_StreamPodSandboxStats_FullMethodName, &runtimeapi.ListPodSandboxStatsResponse{})
	sandboxMetricsLists = listingOf(runtimeapi.RuntimeService_ListPodSandboxMetrics_FullMethodName, runtimeapi.RuntimeService_StreamPodSandboxMetrics_FullMethodName, &runtimeapi.ListPodSandboxMetricsResponse{})
)

// stats passes on statistics and metrics. Old measurements are worthless, so lists omit those of a
// daemon that does not answer.
type stats struct {
	*caller
	// timeout is how long a client of a list waits for the daemon.
	timeout time.Duration
}

func (s stats) ContainerStats(ctx context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	return pass[runtimeapi.ContainerStatsResponse](ctx, s.caller, runtimeapi.RuntimeService_ContainerStats_FullMethodName, req)
}

func (s stats) PodSandboxStats(ctx context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	return pass[runtimeapi.PodSandboxStatsResponse](ctx, s.caller, runtimeapi.RuntimeService_PodSandboxStats_FullMethodName, req)
}

func (s stats) ListContainerStats(ctx context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return carried[runtimeapi.ListContainerStatsResponse](s.measured(ctx, containerStatsLists, req))
}

func (s stats) ListPodSandboxStats(ctx context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return carried[runtimeapi.ListPodSandboxStatsResponse](s.measured(ctx, sandboxStatsLists, req))
}

func (s stats) ListPodSandboxMetrics(ctx context.Context, req *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return carried[runtimeapi.ListPodSandboxMetricsResponse](s.measured(ctx, sandboxMetricsLists, req))
}

// ListMetricDescriptors decodes the answer, because descriptors of several backends are merged by
// name. The daemon is asked once per connection: its descriptors do not change while it runs. A
// daemon that lacks the method has no descriptors.
func (s stats) ListMetricDescriptors(ctx context.Context, req *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	plain := len(req.ProtoReflect().GetUnknown()) == 0
	able := s.support.Load()
	if known := able.metrics.Load(); known != nil && plain {
		return known, nil
	}
	if s.monitor.current().Phase == Lagging {
		return &runtimeapi.ListMetricDescriptorsResponse{}, nil
	}
	wait, cancel := context.WithTimeout(ctx, timeoutWithin(ctx, s.timeout))
	defer cancel()
	resp, err := read[runtimeapi.ListMetricDescriptorsResponse](wait, s.caller, runtimeapi.RuntimeService_ListMetricDescriptors_FullMethodName, req)
	said := err == nil || status.Code(err) == codes.Unimplemented
	if s.omitted(ctx, err) {
		resp, err = &runtimeapi.ListMetricDescriptorsResponse{}, nil
	}
	if plain && said && err == nil {
		able.metrics.Store(resp)
	}
	return resp, err
}

// measured returns a list, empty if the daemon does not answer or lacks the method.
func (s stats) measured(ctx context.Context, l listing, req proto.Message) (wire.Frame, error) {
	if s.monitor.current().Phase == Lagging {
		return nil, nil
	}
	wait, cancel := context.WithTimeout(ctx, timeoutWithin(ctx, s.timeout))
	defer cancel()
	f, err := s.whole(wait, l, req)
	if s.omitted(ctx, err) {
		return nil, nil
	}
	return f, err
}

// omitted reports whether a list omits this daemon's measurements: its errors must not fail the
// lists of other backends.
func (s stats) omitted(ctx context.Context, err error) bool {
	if err == nil || ctx.Err() != nil {
		return false
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unimplemented: // health already shows this failure, or the method is missing
	default:
		log.G(ctx).WithError(err).WithField("backend", s.name).Warn("Backend stats failed; omitting its pods")
	}
	return true
}

// unresponsive reports whether err means that the daemon does not answer, and not that the client
// ended the call.
func unresponsive(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	c := status.Code(err)
	return c == codes.Unavailable || c == codes.DeadlineExceeded
}
