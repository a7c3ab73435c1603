package containerdapi

import (
	"context"
	"fmt"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	cgroup2stats "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
)

// Stats measures containers whose numbers are in no cgroup of this node.
type Stats interface {
	ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error)
}

// measure reads what a task uses, as the message of the node's version of cgroups.
func (s *taskService) measure(ctx context.Context, of subject) (*anypb.Any, error) {
	m, err := s.read(ctx, of)
	if err != nil {
		return nil, err
	}
	return typeurl.MarshalAnyToProto(m)
}

func (s *taskService) read(ctx context.Context, of subject) (proto.Message, error) {
	path := s.cgroup(of)
	switch {
	case path != "":
		return readCgroup(path)
	case of.sandbox != nil:
		return nil, fmt.Errorf("sandbox %s is measured with its containers: %w", of.sandbox.ID(), errdefs.ErrNotFound)
	}
	r, err := s.stats.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: of.container.ID()})
	if err != nil {
		return nil, err
	}
	return ofRuntime(r.GetStats()), nil
}

func readCgroup(path string) (proto.Message, error) {
	inside := cgroup.Inside(path)
	if inside == "" {
		return nil, fmt.Errorf("cgroup %q: %w", path, errdefs.ErrNotFound)
	}
	if cgroups.Mode() == cgroups.Unified {
		m, err := cgroup2.Load(inside)
		if err != nil {
			return nil, err
		}
		return m.Stat()
	}
	c, err := cgroup1.Load(cgroup1.StaticPath(inside))
	if err != nil {
		return nil, err
	}
	return c.Stat(cgroup1.IgnoreNotExist)
}

// ofRuntime is what a runtime with a kernel of its own tells of a container. Pure.
func ofRuntime(s *runtimeapi.ContainerStats) *cgroup2stats.Metrics {
	return &cgroup2stats.Metrics{
		CPU:    &cgroup2stats.CPUStat{UsageUsec: s.GetCpu().GetUsageCoreNanoSeconds().GetValue() / 1000},
		Memory: &cgroup2stats.MemoryStat{Usage: s.GetMemory().GetUsageBytes().GetValue(), Anon: s.GetMemory().GetRssBytes().GetValue()},
	}
}
