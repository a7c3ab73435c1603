package ocispec

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// UpdateResources returns current with the changes of req. A zero, empty or absent field of req
// leaves the value unchanged, as the CRI's UpdateContainerResources demands; entries of
// hugepage_limits and unified replace those of the same name. current is not modified and may be
// nil.
func UpdateResources(current *specs.LinuxResources, req *runtimeapi.LinuxContainerResources, n Node) (*specs.LinuxResources, error) {
	r, err := deepCopy(current)
	if err != nil {
		return nil, fmt.Errorf("copy the resources: %w", err)
	}
	if req == nil {
		return r, nil
	}
	updateCPU(r, req)
	updateMemory(r, req, n)
	updateHugepages(r, req.GetHugepageLimits(), n)
	if err := updateUnified(r, req.GetUnified(), n); err != nil {
		return nil, err
	}
	return r, nil
}

func updateCPU(r *specs.LinuxResources, req *runtimeapi.LinuxContainerResources) {
	r.CPU = cmp.Or(r.CPU, &specs.LinuxCPU{})
	if v := req.GetCpuShares(); v != 0 {
		r.CPU.Shares = new(uint64(v))
	}
	if v := req.GetCpuQuota(); v != 0 {
		r.CPU.Quota = &v
	}
	if v := req.GetCpuPeriod(); v != 0 {
		r.CPU.Period = new(uint64(v))
	}
	if v := req.GetCpusetCpus(); v != "" {
		r.CPU.Cpus = v
	}
	if v := req.GetCpusetMems(); v != "" {
		r.CPU.Mems = v
	}
	if *r.CPU == (specs.LinuxCPU{}) {
		r.CPU = nil
	}
}

// updateMemory prevents swapping unless the request sets a swap limit. OCI's swap is memory plus
// swap, so equal values mean no swap.
func updateMemory(r *specs.LinuxResources, req *runtimeapi.LinuxContainerResources, n Node) {
	limit, swap := req.GetMemoryLimitInBytes(), req.GetMemorySwapLimitInBytes()
	if limit == 0 && swap == 0 {
		return
	}
	r.Memory = cmp.Or(r.Memory, &specs.LinuxMemory{})
	if limit != 0 {
		r.Memory.Limit = &limit
		swap = cmp.Or(swap, limit)
	}
	if n.SwapController {
		r.Memory.Swap = &swap
	}
}

// updateHugepages ignores limits on a node without the hugetlb controller.
func updateHugepages(r *specs.LinuxResources, limits []*runtimeapi.HugepageLimit, n Node) {
	if !n.HugetlbController {
		return
	}
	for _, l := range limits {
		same := func(o specs.LinuxHugepageLimit) bool { return o.Pagesize == l.GetPageSize() }
		if i := slices.IndexFunc(r.HugepageLimits, same); i >= 0 {
			r.HugepageLimits[i].Limit = l.GetLimit()
			continue
		}
		r.HugepageLimits = append(r.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: l.GetPageSize(), Limit: l.GetLimit()})
	}
}

// updateUnified copies cgroup v2 values verbatim. Runtimes write them last, so they override values
// derived from other fields.
func updateUnified(r *specs.LinuxResources, unified map[string]string, n Node) error {
	if len(unified) == 0 {
		return nil
	}
	if !n.CgroupUnified {
		return unmet("resources.unified is for cgroup v2, but this node has v1")
	}
	if r.Unified == nil {
		r.Unified = make(map[string]string, len(unified))
	}
	maps.Copy(r.Unified, unified)
	return nil
}

// ContainerResources converts a container's resources to ContainerStatus.resources.
func ContainerResources(s *specs.Spec) *runtimeapi.ContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	if s == nil || s.Linux == nil {
		return &runtimeapi.ContainerResources{Linux: out}
	}
	if s.Process != nil {
		out.OomScoreAdj = int64(deref(s.Process.OOMScoreAdj))
	}
	r := deref(s.Linux.Resources)
	if c := r.CPU; c != nil {
		out.CpuShares = int64(deref(c.Shares))
		out.CpuQuota = deref(c.Quota)
		out.CpuPeriod = int64(deref(c.Period))
		out.CpusetCpus = c.Cpus
		out.CpusetMems = c.Mems
	}
	if m := r.Memory; m != nil {
		out.MemoryLimitInBytes = deref(m.Limit)
		out.MemorySwapLimitInBytes = deref(m.Swap)
	}
	for _, h := range r.HugepageLimits {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: h.Pagesize, Limit: h.Limit})
	}
	out.Unified = maps.Clone(r.Unified)
	return &runtimeapi.ContainerResources{Linux: out}
}

// clampOOMScoreAdj raises adj to the lowest value that this process may set, because a runtime
// fails to set a lower one.
func clampOOMScoreAdj(adj int64, n Node) *int {
	return new(min(max(int(adj), n.MinOOMScoreAdj, -1000), 1000))
}
