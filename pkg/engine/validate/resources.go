package validate

import (
	"regexp"
	"strconv"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of the kernel's CPU bandwidth controller, in microseconds.
const (
	minCPUPeriod = 1_000
	maxCPUPeriod = 1_000_000
	minCPUQuota  = 1_000
)

var hugepageSize = regexp.MustCompile(`^[1-9][0-9]{0,8}(KB|MB|GB)$`)

// resources checks limits. Zero and empty always mean "not specified".
func resources(field string, r *runtimeapi.LinuxContainerResources) error {
	return first(
		cpu(field, r),
		memory(field, r),
		between(field+".oom_score_adj", r.GetOomScoreAdj(), -1000, 1000),
		cpuList(field+".cpuset_cpus", r.GetCpusetCpus()),
		cpuList(field+".cpuset_mems", r.GetCpusetMems()),
		each(field+".hugepage_limits", r.GetHugepageLimits(), hugepages),
		unified(field+".unified", r.GetUnified()),
	)
}

func between(field string, v, low, high int64) error {
	return invalidIf(v < low || v > high, field, "%d is out of range; use %d to %d", v, low, high)
}

func cpu(field string, r *runtimeapi.LinuxContainerResources) error {
	shares, period, quota := r.GetCpuShares(), r.GetCpuPeriod(), r.GetCpuQuota()
	return first(
		invalidIf(shares < 0, field+".cpu_shares", "%d is negative; use 2 or more, or 0 for no change", shares),
		invalidIf(period != 0 && (period < minCPUPeriod || period > maxCPUPeriod), field+".cpu_period",
			"%d µs is out of range; use %d to %d", period, minCPUPeriod, maxCPUPeriod),
		invalidIf(quota < -1 || quota > 0 && quota < minCPUQuota, field+".cpu_quota",
			"%d µs is out of range; use %d or more, or -1 for no limit", quota, minCPUQuota),
	)
}

func memory(field string, r *runtimeapi.LinuxContainerResources) error {
	limit, swap := r.GetMemoryLimitInBytes(), r.GetMemorySwapLimitInBytes()
	return first(
		invalidIf(limit < 0, field+".memory_limit_in_bytes", "%d is negative; use a number of bytes, or 0 for no change", limit),
		invalidIf(swap < -1, field+".memory_swap_limit_in_bytes", "%d is negative; use a number of bytes, or -1 for no limit", swap),
		invalidIf(limit > 0 && swap > 0 && swap < limit, field+".memory_swap_limit_in_bytes",
			"%d is less than memory_limit_in_bytes, %d, and it counts memory and swap together; raise it", swap, limit),
	)
}

// cpuList checks the kernel's list format (cpuset(7)): "0-3,8".
func cpuList(field, s string) error {
	for item := range strings.SplitSeq(s, ",") {
		if s != "" && !cpuRange(item) {
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
	return invalidIf(!hugepageSize.MatchString(h.GetPageSize()), field+".page_size",
		"%s is not a page size; write it as 2MB or 1GB", quoted(h.GetPageSize()))
}

// unified checks keys that become file names in the container's cgroup. They are used verbatim, so
// none may lead out of that directory.
func unified(field string, values map[string]string) error {
	return eachValue(field, values, func(field, key, value string) error {
		file := strings.Contains(key, ".") && !strings.Contains(key, "/") && !strings.HasPrefix(key, ".") && len(key) <= maxName
		return first(
			invalidIf(!file, field, "is not a file of a cgroup; write it as memory.high"),
			clean(field, key),
			withoutNUL(field, value),
		)
	})
}
