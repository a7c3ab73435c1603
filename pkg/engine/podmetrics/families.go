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

var families = slices.Concat(cpuFamilies, memoryFamilies, pressureFamilies, hugetlbFamilies, processFamilies,
	networkFamilies, filesystemFamilies, blockIOFamilies, specFamilies, timeFamilies)

// Requirements of metrics on the host.
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

// number returns a metric of one number.
func number(kind runtimeapi.MetricType, name, help string, measured func(cgroup.Facts) bool, pick func(*Sample) cgroup.Value) family {
	return family{name: name, help: help, kind: kind, measured: measured, read: func(s *Sample, send send) { send(pick(s)) }}
}

// seconds converts nanoseconds to whole seconds.
func seconds(v cgroup.Value) cgroup.Value {
	return cgroup.Value{N: v.N / uint64(time.Second), Known: v.Known}
}

var cpuFamilies = []family{
	{
		name: "container_cpu_usage_seconds_total", help: "CPU time used, in seconds.", kind: counter,
		labels: []string{"cpu"}, measured: countsCPU,
		read: func(s *Sample, send send) { send(seconds(s.Cgroup.CPUUsageNano), "total") },
	},
	number(counter, "container_cpu_user_seconds_total", "CPU time used in user mode, in seconds.", countsCPU,
		func(s *Sample) cgroup.Value { return seconds(s.Cgroup.CPUUserNano) }),
	number(counter, "container_cpu_system_seconds_total", "CPU time used in the kernel, in seconds.", countsCPU,
		func(s *Sample) cgroup.Value { return seconds(s.Cgroup.CPUSystemNano) }),
	number(counter, "container_cpu_cfs_periods_total", "Periods in which a CPU quota applied.", countsQuota,
		func(s *Sample) cgroup.Value { return s.Cgroup.Periods }),
	number(counter, "container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up.", countsQuota,
		func(s *Sample) cgroup.Value { return s.Cgroup.ThrottledPeriods }),
	number(counter, "container_cpu_cfs_throttled_seconds_total", "Time spent waiting with the CPU quota used up, in seconds.", countsQuota,
		func(s *Sample) cgroup.Value { return seconds(s.Cgroup.ThrottledNano) }),
}

var memoryFamilies = []family{
	number(gauge, "container_memory_usage_bytes", "All memory charged, including memory not used recently.", countsMemory,
		func(s *Sample) cgroup.Value { return s.Cgroup.MemoryUsage }),
	number(gauge, "container_memory_working_set_bytes", "Memory charged, without file pages that were not used recently.", countsMemory,
		func(s *Sample) cgroup.Value { return s.Cgroup.WorkingSet }),
	number(gauge, "container_memory_rss", "Anonymous memory, in bytes.", countsMemory,
		func(s *Sample) cgroup.Value { return s.Cgroup.RSS }),
	number(gauge, "container_memory_cache", "Memory that holds files, in bytes.", countsMemory,
		func(s *Sample) cgroup.Value { return s.Cgroup.Cache }),
	number(gauge, "container_memory_mapped_file", "Memory that holds mapped files, in bytes.", countsMemory,
		func(s *Sample) cgroup.Value { return s.Cgroup.MappedFile }),
	number(gauge, "container_memory_total_active_file_bytes", "Memory that holds files used recently.", countsMemory,
		func(s *Sample) cgroup.Value { return s.Cgroup.ActiveFile }),
	number(gauge, "container_memory_total_inactive_file_bytes", "Memory that holds files not used recently.", countsMemory,
		func(s *Sample) cgroup.Value { return s.Cgroup.InactiveFile }),
	number(gauge, "container_memory_kernel_usage", "Memory of the kernel, in bytes.", countsKernel,
		func(s *Sample) cgroup.Value { return s.Cgroup.KernelMemory }),
	number(gauge, "container_memory_swap", "Swap in use, in bytes.", countsSwap,
		func(s *Sample) cgroup.Value { return s.Cgroup.SwapUsage }),
	number(gauge, "container_memory_max_usage_bytes", "Maximum of memory charged.", countsPeak,
		func(s *Sample) cgroup.Value { return s.Cgroup.PeakMemory }),
	number(counter, "container_memory_failcnt", "Number of times the memory limit was reached.", countsMemory,
		func(s *Sample) cgroup.Value { return s.Cgroup.MemoryFailures }),
	{
		name: "container_memory_failures_total", help: "Page faults, by kind and scope: with and without child cgroups.", kind: counter,
		labels: []string{"failure_type", "scope"}, measured: countsMemory,
		read: func(s *Sample, send send) {
			send(s.Cgroup.OwnPageFaults, "pgfault", "container")
			send(s.Cgroup.OwnMajorPageFaults, "pgmajfault", "container")
			send(s.Cgroup.PageFaults, "pgfault", "hierarchy")
			send(s.Cgroup.MajorPageFaults, "pgmajfault", "hierarchy")
		},
	},
	number(counter, "container_oom_events_total", "Processes killed by the out-of-memory killer.", countsMemory,
		func(s *Sample) cgroup.Value { return s.Cgroup.OOMKills }),
}

// stalls returns the two metrics of one resource.
func stalls(resource string, pick func(*Sample) *cgroup.Pressure) []family {
	total := func(of func(*cgroup.Pressure) cgroup.Stall) func(*Sample) cgroup.Value {
		return func(s *Sample) cgroup.Value {
			p := pick(s)
			if p == nil {
				return cgroup.Value{}
			}
			return seconds(cgroup.Known(of(p).TotalNano))
		}
	}
	return []family{
		number(counter, "container_pressure_"+resource+"_waiting_seconds_total", "Time in which some task waited for "+resource+", in seconds.", countsPressure,
			total(func(p *cgroup.Pressure) cgroup.Stall { return p.Some })),
		number(counter, "container_pressure_"+resource+"_stalled_seconds_total", "Time in which all tasks waited for "+resource+", in seconds.", countsPressure,
			total(func(p *cgroup.Pressure) cgroup.Stall { return p.Full })),
	}
}

var pressureFamilies = slices.Concat(
	stalls("cpu", func(s *Sample) *cgroup.Pressure { return s.Cgroup.CPUPressure }),
	stalls("memory", func(s *Sample) *cgroup.Pressure { return s.Cgroup.MemoryPressure }),
	stalls("io", func(s *Sample) *cgroup.Pressure { return s.Cgroup.IOPressure }),
)

// hugepages returns a metric for each page size.
func hugepages(name, help string, measured func(cgroup.Facts) bool, pick func(cgroup.Hugepages) cgroup.Value) family {
	return family{
		name: name, help: help, kind: gauge, labels: []string{"pagesize"}, measured: measured,
		read: func(s *Sample, send send) {
			for _, h := range s.Cgroup.Hugetlb {
				send(pick(h), h.Size)
			}
		},
	}
}

var hugetlbFamilies = []family{
	hugepages("container_hugetlb_usage_bytes", "Huge pages in use, by page size.", countsHugetlb,
		func(h cgroup.Hugepages) cgroup.Value { return h.Usage }),
	hugepages("container_hugetlb_max_usage_bytes", "Maximum of huge pages in use, by page size.", countsHugePeak,
		func(h cgroup.Hugepages) cgroup.Value { return h.Peak }),
}

var processFamilies = []family{
	number(gauge, "container_processes", "Processes.", nil,
		func(s *Sample) cgroup.Value { return s.Processes }),
	number(gauge, "container_threads", "Processes and threads.", countsPids,
		func(s *Sample) cgroup.Value { return s.Cgroup.Pids }),
	number(gauge, "container_threads_max", "Limit of processes and threads; 0 means unlimited.", countsPids,
		func(s *Sample) cgroup.Value { return cgroup.Value{N: s.Cgroup.PidsLimit.N, Known: s.Cgroup.Pids.Known} }),
	number(gauge, "container_file_descriptors", "Open file descriptors.", nil,
		func(s *Sample) cgroup.Value { return s.FileDescriptors }),
	number(gauge, "container_sockets", "Open sockets.", nil,
		func(s *Sample) cgroup.Value { return s.Sockets }),
	{
		name: "container_ulimits_soft", help: "Soft limits of the first process; unlimited ones are absent.", kind: gauge,
		labels: []string{"ulimit"},
		read:   func(s *Sample, send send) { send(s.OpenFilesLimit, "max_open_files") },
	},
}

// traffic returns a metric for each interface.
func traffic(name, help string, pick func(network.InterfaceStats) uint64) family {
	return family{
		name: "container_network_" + name + "_total", help: help, kind: counter, labels: []string{"interface"},
		read: func(s *Sample, send send) {
			for _, i := range s.Network {
				send(cgroup.Known(pick(i)), i.Name)
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

// filesystem returns a metric of the writable layer's filesystem.
func filesystem(name, help string, pick func(*Filesystem) cgroup.Value) family {
	return family{
		name: "container_fs_" + name, help: help, kind: gauge, labels: []string{"device"},
		read: func(s *Sample, send send) { send(pick(&s.Filesystem), s.Filesystem.Device) },
	}
}

var filesystemFamilies = []family{
	filesystem("usage_bytes", "Bytes that the container wrote and did not delete.", func(f *Filesystem) cgroup.Value { return f.Used }),
	filesystem("limit_bytes", "Size of the filesystem that the container writes to.", func(f *Filesystem) cgroup.Value { return f.Limit }),
	filesystem("inodes_total", "Inodes of the filesystem that the container writes to.", func(f *Filesystem) cgroup.Value { return f.Inodes }),
	filesystem("inodes_free", "Free inodes of the filesystem that the container writes to.", func(f *Filesystem) cgroup.Value { return f.InodesFree }),
}

// blockIO returns a metric for each block device.
func blockIO(name, help string, pick func(BlockIO) uint64) family {
	return family{
		name: "container_fs_" + name + "_total", help: help, kind: counter, labels: []string{"device"}, measured: countsBlockIO,
		read: func(s *Sample, send send) {
			for _, io := range s.BlockIO {
				send(cgroup.Known(pick(io)), io.Device)
			}
		},
	}
}

var blockIOFamilies = []family{
	blockIO("reads_bytes", "Bytes read from block devices.", func(io BlockIO) uint64 { return io.ReadBytes }),
	blockIO("reads", "Reads from block devices.", func(io BlockIO) uint64 { return io.ReadOperations }),
	blockIO("writes_bytes", "Bytes written to block devices.", func(io BlockIO) uint64 { return io.WriteBytes }),
	blockIO("writes", "Writes to block devices.", func(io BlockIO) uint64 { return io.WriteOperations }),
	{
		name: "container_blkio_device_usage_total", help: "Bytes read from and written to block devices, by operation.", kind: counter,
		labels: []string{"device", "major", "minor", "operation"}, measured: countsBlockIO,
		read: func(s *Sample, send send) {
			for _, io := range s.BlockIO {
				send(cgroup.Known(io.ReadBytes), io.Device, io.Major, io.Minor, "Read")
				send(cgroup.Known(io.WriteBytes), io.Device, io.Major, io.Minor, "Write")
			}
		},
	},
}

// allowed returns a metric of a container's limit.
func allowed(name, help string, pick func(*Spec) cgroup.Value) family {
	return number(gauge, "container_spec_"+name, help, nil, func(s *Sample) cgroup.Value {
		if s.Spec == nil {
			return cgroup.Value{}
		}
		return pick(s.Spec)
	})
}

// orNone converts an unknown limit to 0, which means unlimited.
func orNone(v cgroup.Value) cgroup.Value { return cgroup.Known(v.N) }

var specFamilies = []family{
	allowed("cpu_period", "Period of the CPU quota, in microseconds.", func(s *Spec) cgroup.Value { return s.CPUPeriod }),
	allowed("cpu_quota", "CPU time that may be used in a period, in microseconds.", func(s *Spec) cgroup.Value { return s.CPUQuota }),
	allowed("cpu_shares", "Share of CPU time, relative to others.", func(s *Spec) cgroup.Value { return s.CPUShares }),
	allowed("memory_limit_bytes", "Memory limit; 0 means unlimited.", func(s *Spec) cgroup.Value { return orNone(s.MemoryLimit) }),
	allowed("memory_reservation_limit_bytes", "Memory that is reclaimed last; 0 means none.", func(s *Spec) cgroup.Value { return orNone(s.MemoryReservation) }),
	allowed("memory_swap_limit_bytes", "Limit of memory and swap together; 0 means unlimited.", func(s *Spec) cgroup.Value { return orNone(s.SwapLimit) }),
}

// unix returns a metric of a time, in whole seconds.
func unix(name, help string, pick func(*Sample) time.Time) family {
	return number(gauge, name, help, nil, func(s *Sample) cgroup.Value {
		at := pick(s).Unix()
		return cgroup.Value{N: uint64(at), Known: at > 0}
	})
}

var timeFamilies = []family{
	unix("container_last_seen", "Unix time of the measurement.", func(s *Sample) time.Time { return s.Seen }),
	unix("container_start_time_seconds", "Unix time of the start.", func(s *Sample) time.Time { return s.Started }),
}
