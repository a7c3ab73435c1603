package task

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

// PodMemory is the memory limit of a pod with all containers in one process of the node. At the
// limit any call may fail, and the runtime's error names only the symptom.
type PodMemory struct {
	paths cgroup.Paths
	hits  uint64
	least uint64 // the part that gVisor itself needs, in bytes
}

// MemoryOf counts how often the pod reached its limit before a start. It is zero unless the runtime
// is gVisor.
func MemoryOf(s *pod.Sandbox) PodMemory {
	if !s.MemoryLimit {
		return PodMemory{}
	}
	paths := s.Parent()
	return PodMemory{paths: paths, hits: cgroup.MemoryHits(paths), least: s.LeastMemory}
}

// Explain names the limit in the error of a start in which the pod reached it. Such an error is the
// pod's, not the runtime's.
func (m PodMemory) Explain(err error) error {
	if err == nil || cgroup.MemoryHits(m.paths) <= m.hits {
		return err
	}
	stats, _ := cgroup.ReadStats(m.paths)
	return handler.AttributeToPod(fmt.Errorf("the pod ran into its memory limit of %.4gMi, of which gVisor itself needs up to %dMi; raise the memory limits of its containers: %w: %w",
		float64(stats.MemoryLimit.N)/(1<<20), m.least>>20, err, errdefs.ErrResourceExhausted))
}
