package sandbox

import (
	"context"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// memoryOf is what the kubelet lets a pod use whose kernel is its own: it limits
// the pod's cgroup before it asks for the pod.
func (b *processes) memoryOf(ctx context.Context, s *pod.Sandbox) uint64 {
	if !s.MemoryLimit {
		return 0
	}
	parent := s.Config().GetLinux().GetCgroupParent()
	stats, err := cgroup.ReadStats(cgroup.ParentPaths(parent, s.Spec().Pinned.CgroupDriver))
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Debug("Failed to read the memory limit of pod; its VM sees all memory of the node")
		return 0
	}
	return stats.MemoryLimit.N
}
