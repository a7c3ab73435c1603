package validate

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Bounds of the kernel's CPU bandwidth controller, in microseconds.
const (
	minCPUPeriod = 1_000
	maxCPUPeriod = 1_000_000
	minCPUQuota  = 1_000
)

var hugepageSize = regexp.MustCompile(`^[1-9][0-9]{0,8}(KB|MB|GB)$`)

// resources checks limits. Zero and empty always mean "not specified".
func resources(field string, r *runtimeapi.LinuxContainerResources) error {
	return first(
		func() error { return cpu(field, r) },
		func() error { return memory(field, r) },
		func() error {
			return between(field+".oom_score_adj", r.GetOomScoreAdj(), -1000, 1000)
		},
		func() error { return cpuList(field+".cpuset_cpus", r.GetCpusetCpus()) },
		func() error { return cpuList(field+".cpuset_mems", r.GetCpusetMems()) },
		func() error { return each(field+".hugepage_limits", r.GetHugepageLimits(), hugepages) },
		func() error { return unified(field+".unified", r.GetUnified()) },
	)
}

func between(field string, v, low, high int64) error {
	if v < low || v > high {
		return invalid(field, "%d is out of range; use %d to %d", v, low, high)
	}
	return nil
}

func cpu(field string, r *runtimeapi.LinuxContainerResources) error {
	if v := r.GetCpuShares(); v < 0 {
		return invalid(field+".cpu_shares", "%d is negative; use 2 or more, or 0 for no change", v)
	}
	if v := r.GetCpuPeriod(); v != 0 && (v < minCPUPeriod || v > maxCPUPeriod) {
		return invalid(field+".cpu_period", "%d µs is out of range; use %d to %d", v, minCPUPeriod, maxCPUPeriod)
	}
	if v := r.GetCpuQuota(); v < -1 || v > 0 && v < minCPUQuota {
		return invalid(field+".cpu_quota", "%d µs is out of range; use %d or more, or -1 for no limit", v, minCPUQuota)
	}
	return nil
}

func memory(field string, r *runtimeapi.LinuxContainerResources) error {
	limit, swap := r.GetMemoryLimitInBytes(), r.GetMemorySwapLimitInBytes()
	switch {
	case limit < 0:
		return invalid(field+".memory_limit_in_bytes", "%d is negative; use a number of bytes, or 0 for no change", limit)
	case swap < -1:
		return invalid(field+".memory_swap_limit_in_bytes", "%d is negative; use a number of bytes, or -1 for no limit", swap)
	case limit > 0 && swap > 0 && swap < limit:
		return invalid(field+".memory_swap_limit_in_bytes",
			"%d is less than memory_limit_in_bytes, %d, and it counts memory and swap together; raise it", swap, limit)
	}
	return nil
}

// cpuList checks the kernel's list format (cpuset(7)): "0-3,8".
func cpuList(field, s string) error {
	if s == "" {
		return nil
	}
	for item := range strings.SplitSeq(s, ",") {
		if !cpuRange(item) {
			return invalid(field, "%s is not a list of numbers; write it as 0-3,8", quoted(s))
		}
	}
	return nil
}

func cpuRange(s string) bool {
	from, to, isRange := strings.Cut(s, "-")
	low, err := strconv.ParseUint(from, 10, 16)
	if err != nil || !isRange {
		return err == nil
	}
	high, err := strconv.ParseUint(to, 10, 16)
	return err == nil && low <= high
}

func hugepages(field string, h *runtimeapi.HugepageLimit) error {
	if !hugepageSize.MatchString(h.GetPageSize()) {
		return invalid(field+".page_size", "%s is not a page size; write it as 2MB or 1GB", quoted(h.GetPageSize()))
	}
	return nil
}

// unified checks keys that become file names in the container's cgroup. They
// are written as they are, so none may lead out of that directory.
func unified(field string, values map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		at := field + "[" + quoted(key) + "]"
		if !strings.Contains(key, ".") || strings.Contains(key, "/") || strings.HasPrefix(key, ".") || len(key) > maxName {
			return invalid(at, "is not a file of a cgroup; write it as memory.high")
		}
		if err := clean(at, key); err != nil {
			return err
		}
		if err := withoutNUL(at, values[key]); err != nil {
			return err
		}
	}
	return nil
}
