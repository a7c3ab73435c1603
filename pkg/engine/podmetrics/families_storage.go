package podmetrics

import (
	"time"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
)

// filesystem makes a metric of the writable layer's filesystem.
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

// blockIO makes a metric of each block device.
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

// allowed makes a metric of what a container may use.
func allowed(name, help string, pick func(*Spec) cgroup.Value) family {
	return number(gauge, "container_spec_"+name, help, nil, func(s *Sample) cgroup.Value {
		if s.Spec == nil {
			return cgroup.Value{}
		}
		return pick(s.Spec)
	})
}

// orNone shows a limit that is not known as 0, which stands for none.
func orNone(v cgroup.Value) cgroup.Value { return cgroup.Known(v.N) }

var specFamilies = []family{
	allowed("cpu_period", "Period of the CPU quota, in microseconds.", func(s *Spec) cgroup.Value { return s.CPUPeriod }),
	allowed("cpu_quota", "CPU time that may be used in a period, in microseconds.", func(s *Spec) cgroup.Value { return s.CPUQuota }),
	allowed("cpu_shares", "Share of CPU time, relative to others.", func(s *Spec) cgroup.Value { return s.CPUShares }),
	allowed("memory_limit_bytes", "Memory limit; 0 means unlimited.", func(s *Spec) cgroup.Value { return orNone(s.MemoryLimit) }),
	allowed("memory_reservation_limit_bytes", "Memory that is reclaimed last; 0 means none.", func(s *Spec) cgroup.Value { return orNone(s.MemoryReservation) }),
	allowed("memory_swap_limit_bytes", "Limit of memory and swap together; 0 means unlimited.", func(s *Spec) cgroup.Value { return orNone(s.SwapLimit) }),
}

// unix makes a metric of a time, in whole seconds.
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
