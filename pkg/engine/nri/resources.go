package nri

import (
	"maps"

	"github.com/containerd/nri/pkg/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fromCRI leaves out what the CRI leaves as it is: a zero.
func fromCRI(r *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	out := &api.LinuxResources{
		Cpu: &api.LinuxCPU{Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems()},
		Memory: &api.LinuxMemory{
			Limit: optional(r.GetMemoryLimitInBytes()), Swap: optional(r.GetMemorySwapLimitInBytes()),
		},
		Unified: maps.Clone(r.GetUnified()),
	}
	out.Cpu.Quota = optional(r.GetCpuQuota())
	if v := r.GetCpuShares(); v > 0 {
		out.Cpu.Shares = api.UInt64(uint64(v))
	}
	if v := r.GetCpuPeriod(); v > 0 {
		out.Cpu.Period = api.UInt64(uint64(v))
	}
	for _, l := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: l.GetPageSize(), Limit: l.GetLimit()})
	}
	return out
}

func optional(v int64) *api.OptionalInt64 {
	if v == 0 {
		return nil
	}
	return api.Int64(v)
}

// ToCRI is the part of r that the CRI has words for; 0 stays "as it is". Pids
// has the rest that can change.
func ToCRI(r *api.LinuxResources) *runtimeapi.LinuxContainerResources {
	if r == nil {
		return nil
	}
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:              int64(r.GetCpu().GetShares().GetValue()), //nolint:gosec // a weight
		CpuPeriod:              int64(r.GetCpu().GetPeriod().GetValue()), //nolint:gosec // microseconds
		CpuQuota:               r.GetCpu().GetQuota().GetValue(),
		CpusetCpus:             r.GetCpu().GetCpus(),
		CpusetMems:             r.GetCpu().GetMems(),
		MemoryLimitInBytes:     r.GetMemory().GetLimit().GetValue(),
		MemorySwapLimitInBytes: r.GetMemory().GetSwap().GetValue(),
		Unified:                maps.Clone(r.GetUnified()),
	}
	for _, l := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: l.GetPageSize(), Limit: l.GetLimit()})
	}
	return out
}

// Pids is the limit of processes that r sets, or nil: -1 is no limit.
func Pids(r *api.LinuxResources) *int64 {
	if r.GetPids() == nil || r.GetPids().GetLimit() == 0 {
		return nil
	}
	limit := max(r.GetPids().GetLimit(), -1)
	return &limit
}
