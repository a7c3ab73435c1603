package podmetrics

import (
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/network"
)

const (
	counter = runtimeapi.MetricType_COUNTER
	gauge   = runtimeapi.MetricType_GAUGE
)

// families are all metrics.
var families = slices.Concat(cpuFamilies, memoryFamilies, pressureFamilies, hugetlbFamilies, processFamilies,
	networkFamilies, filesystemFamilies, blockIOFamilies, specFamilies, timeFamilies)

// What the host must have.
var (
	countsCPU      = func(f cgroup.Facts) bool { return f.CPUTime }
	countsQuota    = func(f cgroup.Facts) bool { return f.Quota }
	countsMemory   = func(f cgroup.Facts) bool { return f.Memory }
	countsKernel   = func(f cgroup.Facts) bool { return f.KernelMemory }
	countsPeak     = func(f cgroup.Facts) bool { return f.PeakMemory }
	countsSwap     = func(f cgroup.Facts) bool { return f.Swap }
	countsPids     = func(f cgroup.Facts) bool { return f.Pids }
	countsBlockIO  = func(f cgroup.Facts) bool { return f.BlockIO }
	countsHugetlb  = func(f cgroup.Facts) bool { return f.Hugetlb }
	countsHugePeak = func(f cgroup.Facts) bool { return f.HugetlbPeak }
	countsPressure = func(f cgroup.Facts) bool { return f.Pressure }
)

// one reads one number of the cgroup.
func one(pick func(*cgroup.Detail) cgroup.Value) func(*Sample, send) {
	return func(s *Sample, send send) {
		if s.Cgroup != nil {
			send(pick(s.Cgroup))
		}
	}
}

// seconds are whole ones, of nanoseconds.
func seconds(v cgroup.Value) cgroup.Value {
	return cgroup.Value{N: v.N / uint64(time.Second), Known: v.Known}
}

var cpuFamilies = []family{
	{
		name: "container_cpu_usage_seconds_total", help: "CPU time used, in seconds.", kind: counter,
		labels: []string{"cpu"}, measured: countsCPU,
		read: func(s *Sample, send send) {
			if s.Cgroup != nil {
				send(seconds(s.Cgroup.CPUUsageNano), "total")
			}
		},
	},
	{
		name: "container_cpu_user_seconds_total", help: "CPU time used in user mode, in seconds.", kind: counter, measured: countsCPU,
		read: one(func(d *cgroup.Detail) cgroup.Value { return seconds(d.CPUUserNano) }),
	},
	{
		name: "container_cpu_system_seconds_total", help: "CPU time used in the kernel, in seconds.", kind: counter, measured: countsCPU,
		read: one(func(d *cgroup.Detail) cgroup.Value { return seconds(d.CPUSystemNano) }),
	},
	{
		name: "container_cpu_cfs_periods_total", help: "Periods in which a CPU quota applied.", kind: counter, measured: countsQuota,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.Periods }),
	},
	{
		name: "container_cpu_cfs_throttled_periods_total", help: "Periods in which the CPU quota was used up.", kind: counter, measured: countsQuota,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.ThrottledPeriods }),
	},
	{
		name: "container_cpu_cfs_throttled_seconds_total", help: "Time spent waiting with the CPU quota used up, in seconds.", kind: counter, measured: countsQuota,
		read: one(func(d *cgroup.Detail) cgroup.Value { return seconds(d.ThrottledNano) }),
	},
}

var memoryFamilies = []family{
	{
		name: "container_memory_usage_bytes", help: "All memory charged, including memory not used recently.", kind: gauge, measured: countsMemory,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.MemoryUsage }),
	},
	{
		name: "container_memory_working_set_bytes", help: "Memory charged, without file pages that were not used recently.", kind: gauge, measured: countsMemory,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.WorkingSet }),
	},
	{
		name: "container_memory_rss", help: "Anonymous memory, in bytes.", kind: gauge, measured: countsMemory,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.RSS }),
	},
	{
		name: "container_memory_cache", help: "Memory that holds files, in bytes.", kind: gauge, measured: countsMemory,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.Cache }),
	},
	{
		name: "container_memory_mapped_file", help: "Memory that holds mapped files, in bytes.", kind: gauge, measured: countsMemory,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.MappedFile }),
	},
	{
		name: "container_memory_total_active_file_bytes", help: "Memory that holds files used recently.", kind: gauge, measured: countsMemory,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.ActiveFile }),
	},
	{
		name: "container_memory_total_inactive_file_bytes", help: "Memory that holds files not used recently.", kind: gauge, measured: countsMemory,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.InactiveFile }),
	},
	{
		name: "container_memory_kernel_usage", help: "Memory of the kernel, in bytes.", kind: gauge, measured: countsKernel,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.KernelMemory }),
	},
	{
		name: "container_memory_swap", help: "Swap in use, in bytes.", kind: gauge, measured: countsSwap,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.SwapUsage }),
	},
	{
		name: "container_memory_max_usage_bytes", help: "Maximum of memory charged.", kind: gauge, measured: countsPeak,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.PeakMemory }),
	},
	{
		name: "container_memory_failcnt", help: "Number of times the memory limit was reached.", kind: counter, measured: countsMemory,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.MemoryFailures }),
	},
	{
		name: "container_memory_failures_total", help: "Page faults, by kind and scope: with and without child cgroups.", kind: counter,
		labels: []string{"failure_type", "scope"}, measured: countsMemory,
		read: func(s *Sample, send send) {
			if s.Cgroup == nil {
				return
			}
			send(s.Cgroup.OwnPageFaults, "pgfault", "container")
			send(s.Cgroup.OwnMajorPageFaults, "pgmajfault", "container")
			send(s.Cgroup.PageFaults, "pgfault", "hierarchy")
			send(s.Cgroup.MajorPageFaults, "pgmajfault", "hierarchy")
		},
	},
	{
		name: "container_oom_events_total", help: "Processes killed by the out-of-memory killer.", kind: counter, measured: countsMemory,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.OOMKills }),
	},
}

// stalls makes the two metrics of one resource.
func stalls(resource string, pick func(*cgroup.Detail) *cgroup.Pressure) []family {
	read := func(total func(*cgroup.Pressure) uint64) func(*Sample, send) {
		return func(s *Sample, send send) {
			if s.Cgroup == nil || pick(s.Cgroup) == nil {
				return
			}
			send(seconds(cgroup.Value{N: total(pick(s.Cgroup)), Known: true}))
		}
	}
	return []family{
		{
			name: "container_pressure_" + resource + "_waiting_seconds_total", kind: counter, measured: countsPressure,
			help: "Time in which some task waited for " + resource + ", in seconds.",
			read: read(func(p *cgroup.Pressure) uint64 { return p.Some.TotalNano }),
		},
		{
			name: "container_pressure_" + resource + "_stalled_seconds_total", kind: counter, measured: countsPressure,
			help: "Time in which all tasks waited for " + resource + ", in seconds.",
			read: read(func(p *cgroup.Pressure) uint64 { return p.Full.TotalNano }),
		},
	}
}

var pressureFamilies = slices.Concat(
	stalls("cpu", func(d *cgroup.Detail) *cgroup.Pressure { return d.CPUPressure }),
	stalls("memory", func(d *cgroup.Detail) *cgroup.Pressure { return d.MemoryPressure }),
	stalls("io", func(d *cgroup.Detail) *cgroup.Pressure { return d.IOPressure }),
)

// hugepages sends one number of each page size.
func hugepages(pick func(cgroup.Hugepages) cgroup.Value) func(*Sample, send) {
	return func(s *Sample, send send) {
		if s.Cgroup == nil {
			return
		}
		for _, h := range s.Cgroup.Hugetlb {
			send(pick(h), h.Size)
		}
	}
}

var hugetlbFamilies = []family{
	{
		name: "container_hugetlb_usage_bytes", help: "Huge pages in use, by page size.", kind: gauge,
		labels: []string{"pagesize"}, measured: countsHugetlb,
		read: hugepages(func(h cgroup.Hugepages) cgroup.Value { return h.Usage }),
	},
	{
		name: "container_hugetlb_max_usage_bytes", help: "Maximum of huge pages in use, by page size.", kind: gauge,
		labels: []string{"pagesize"}, measured: countsHugePeak,
		read: hugepages(func(h cgroup.Hugepages) cgroup.Value { return h.Peak }),
	},
}

func value(pick func(*Sample) cgroup.Value) func(*Sample, send) {
	return func(s *Sample, send send) { send(pick(s)) }
}

var processFamilies = []family{
	{
		name: "container_processes", help: "Processes.", kind: gauge,
		read: value(func(s *Sample) cgroup.Value { return s.Processes }),
	},
	{
		name: "container_threads", help: "Processes and threads.", kind: gauge, measured: countsPids,
		read: one(func(d *cgroup.Detail) cgroup.Value { return d.Pids }),
	},
	{
		name: "container_threads_max", help: "Limit of processes and threads; 0 means unlimited.", kind: gauge, measured: countsPids,
		read: one(func(d *cgroup.Detail) cgroup.Value { return cgroup.Value{N: d.PidsLimit.N, Known: d.Pids.Known} }),
	},
	{
		name: "container_file_descriptors", help: "Open file descriptors.", kind: gauge,
		read: value(func(s *Sample) cgroup.Value { return s.FileDescriptors }),
	},
	{
		name: "container_sockets", help: "Open sockets.", kind: gauge,
		read: value(func(s *Sample) cgroup.Value { return s.Sockets }),
	},
	{
		name: "container_ulimits_soft", help: "Soft limits of the first process; unlimited ones are absent.", kind: gauge,
		labels: []string{"ulimit"},
		read:   func(s *Sample, send send) { send(s.OpenFilesLimit, "max_open_files") },
	},
}

// traffic makes a metric of each interface.
func traffic(name, help string, pick func(network.InterfaceStats) uint64) family {
	return family{
		name: "container_network_" + name + "_total", help: help, kind: counter, labels: []string{"interface"},
		read: func(s *Sample, send send) {
			for _, i := range s.Network {
				send(cgroup.Value{N: pick(i), Known: true}, i.Name)
			}
		},
	}
}

var networkFamilies = []family{
	traffic("receive_bytes", "Bytes received.", func(i network.InterfaceStats) uint64 { return i.RxBytes }),
	traffic("receive_packets", "Packets received.", func(i network.InterfaceStats) uint64 { return i.RxPackets }),
	traffic("receive_packets_dropped", "Packets dropped while receiving.", func(i network.InterfaceStats) uint64 { return i.RxDropped }),
	traffic("receive_errors", "Errors while receiving.", func(i network.InterfaceStats) uint64 { return i.RxErrors }),
	traffic("transmit_bytes", "Bytes sent.", func(i network.InterfaceStats) uint64 { return i.TxBytes }),
	traffic("transmit_packets", "Packets sent.", func(i network.InterfaceStats) uint64 { return i.TxPackets }),
	traffic("transmit_packets_dropped", "Packets dropped while sending.", func(i network.InterfaceStats) uint64 { return i.TxDropped }),
	traffic("transmit_errors", "Errors while sending.", func(i network.InterfaceStats) uint64 { return i.TxErrors }),
}
