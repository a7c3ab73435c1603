package ocispec

import specs "github.com/opencontainers/runtime-spec/specs-go"

// FitNode makes s one that this node can have, as Build does, after somebody has
// changed it who does not know the node: an oom_score_adj that berth may set, no
// limit that has no controller.
func FitNode(s *specs.Spec, n Node) error {
	if p := s.Process; p != nil && p.OOMScoreAdj != nil {
		p.OOMScoreAdj = clampOOMScoreAdj(int64(*p.OOMScoreAdj), n)
	}
	if s.Linux == nil || s.Linux.Resources == nil {
		return nil
	}
	r := s.Linux.Resources
	if r.Memory != nil && !n.SwapController {
		r.Memory.Swap = nil
	}
	if len(r.Unified) > 0 && !n.CgroupUnified {
		return unmet("resources.unified is for cgroup v2, but this node has v1")
	}
	if !n.HugetlbController {
		r.HugepageLimits = nil
	}
	return nil
}
