package nri

import (
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/api"
	nrigenerate "github.com/containerd/nri/pkg/runtime-tools/generate"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-tools/generate"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Adjust applies the changes that plugins request to a container's spec; inject adds CDI devices to
// it. A change that this node does not support is an error, because it would otherwise be dropped
// silently. The caller must then fit the spec to the runtime.
func Adjust(spec *specs.Spec, a *api.ContainerAdjustment, inject func(*specs.Spec, []string) error) error {
	if a == nil {
		return nil
	}
	if err := checkSupported(spec, a); err != nil {
		return err
	}
	base := generate.NewFromSpec(spec)
	g := nrigenerate.SpecGenerator(&base,
		nrigenerate.WithCDIDeviceInjector(inject),
		nrigenerate.WithRdtResolver(func(class string) (*specs.LinuxIntelRdt, error) {
			return &specs.LinuxIntelRdt{ClosID: class}, nil
		}),
	)
	if err := g.Adjust(a); err != nil {
		return fmt.Errorf("apply changes of NRI plugins: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if spec.Process != nil {
		spec.Process.Rlimits = lastOfEach(spec.Process.Rlimits)
	}
	return nil
}

func checkSupported(spec *specs.Spec, a *api.ContainerAdjustment) error {
	l := a.GetLinux()
	if p := l.GetCgroupsPath(); p != "" && (spec.Linux == nil || p != spec.Linux.CgroupsPath) {
		return unsupported("moving the container to cgroup %s, but containers must stay below the cgroup of their pod", p)
	}
	if class := l.GetResources().GetBlockioClass(); class != nil && class.GetValue() != "" {
		return unsupported("block I/O class %q, but berth does not support these classes", class.GetValue())
	}
	return nil
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("an NRI plugin requests %s: %w", fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
}

// lastOfEach keeps the last limit of each type, at the position of the first.
func lastOfEach(limits []specs.POSIXRlimit) []specs.POSIXRlimit {
	var out []specs.POSIXRlimit
	for _, l := range limits {
		if i := slices.IndexFunc(out, func(o specs.POSIXRlimit) bool { return o.Type == l.Type }); i >= 0 {
			out[i] = l
			continue
		}
		out = append(out, l)
	}
	return out
}

// fromCRI omits fields that are zero, which means unchanged in the CRI.
func fromCRI(r *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	out := &api.LinuxResources{
		Cpu: &api.LinuxCPU{
			Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems(), Quota: optional(r.GetCpuQuota(), api.Int64),
			Shares: optional(max(r.GetCpuShares(), 0), api.UInt64), Period: optional(max(r.GetCpuPeriod(), 0), api.UInt64),
		},
		Memory: &api.LinuxMemory{
			Limit: optional(r.GetMemoryLimitInBytes(), api.Int64), Swap: optional(r.GetMemorySwapLimitInBytes(), api.Int64),
		},
		Unified: maps.Clone(r.GetUnified()),
	}
	for _, l := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: l.GetPageSize(), Limit: l.GetLimit()})
	}
	return out
}

func optional[T any](v int64, of func(any) *T) *T {
	if v == 0 {
		return nil
	}
	return of(v)
}

// ToCRI converts the fields of r that the CRI has; 0 means unchanged. Pids returns the only other
// field that can change.
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

// Pids returns the limit of processes that r sets, or nil; -1 means unlimited.
func Pids(r *api.LinuxResources) *int64 {
	if r.GetPids() == nil || r.GetPids().GetLimit() == 0 {
		return nil
	}
	limit := max(r.GetPids().GetLimit(), -1)
	return &limit
}
