package cgroup

import (
	"slices"
	"time"
)

// Sum is what several cgroups use together, none of which is in another. A number
// is known if all of them tell it. Pressures do not add up, and are left out; so
// is a limit, unless all have one. The sum of none is zero.
func Sum(parts ...Stats) Stats {
	sum := Stats{Time: time.Now()}
	if len(parts) == 0 {
		for _, v := range []*Value{&sum.CPUUsageNano, &sum.MemoryUsage, &sum.WorkingSet, &sum.RSS, &sum.Pids} {
			v.Known = true
		}
		return sum
	}
	for i, part := range parts {
		if i == 0 {
			part.CPUPressure, part.MemoryPressure, part.IOPressure = nil, nil, nil
			sum = part
			continue
		}
		sum.add(part)
	}
	return sum
}

func (s *Stats) add(o Stats) {
	addValues(
		[2]*Value{&s.CPUUsageNano, &o.CPUUsageNano},
		[2]*Value{&s.MemoryUsage, &o.MemoryUsage}, [2]*Value{&s.WorkingSet, &o.WorkingSet}, [2]*Value{&s.RSS, &o.RSS},
		[2]*Value{&s.Cache, &o.Cache}, [2]*Value{&s.MappedFile, &o.MappedFile}, [2]*Value{&s.ActiveFile, &o.ActiveFile}, [2]*Value{&s.InactiveFile, &o.InactiveFile},
		[2]*Value{&s.PageFaults, &o.PageFaults}, [2]*Value{&s.MajorPageFaults, &o.MajorPageFaults}, [2]*Value{&s.MemoryLimit, &o.MemoryLimit},
		[2]*Value{&s.SwapUsage, &o.SwapUsage}, [2]*Value{&s.SwapLimit, &o.SwapLimit}, [2]*Value{&s.Pids, &o.Pids},
	)
}

// SumDetails is Sum for details. Peaks do not add up either, as those of several
// cgroups are of different times, and are left out.
func SumDetails(parts ...Detail) Detail {
	var sum Detail
	stats := make([]Stats, len(parts))
	for i, part := range parts {
		stats[i] = part.Stats
		part.PeakMemory = Value{}
		if i == 0 {
			sum = part
			sum.Hugetlb, sum.IO = nil, nil
		} else {
			sum.add(part)
		}
		sum.Hugetlb, sum.IO = addHugepages(sum.Hugetlb, part.Hugetlb), addIO(sum.IO, part.IO)
	}
	sum.Stats = Sum(stats...)
	return sum
}

// add leaves out Stats, Hugetlb and IO.
func (d *Detail) add(o Detail) {
	addValues(
		[2]*Value{&d.CPUUserNano, &o.CPUUserNano}, [2]*Value{&d.CPUSystemNano, &o.CPUSystemNano},
		[2]*Value{&d.Periods, &o.Periods}, [2]*Value{&d.ThrottledPeriods, &o.ThrottledPeriods}, [2]*Value{&d.ThrottledNano, &o.ThrottledNano},
		[2]*Value{&d.KernelMemory, &o.KernelMemory}, [2]*Value{&d.MemoryFailures, &o.MemoryFailures}, [2]*Value{&d.OOMKills, &o.OOMKills},
		[2]*Value{&d.MemoryReservation, &o.MemoryReservation},
		[2]*Value{&d.OwnPageFaults, &o.OwnPageFaults}, [2]*Value{&d.OwnMajorPageFaults, &o.OwnMajorPageFaults},
		[2]*Value{&d.PidsLimit, &o.PidsLimit},
	)
}

// addValues adds the second of each pair to the first; what one of them does not
// know, the sum does not know.
func addValues(pairs ...[2]*Value) {
	for _, pair := range pairs {
		to, more := pair[0], pair[1]
		if !more.Known || !to.Known {
			*to = Value{}
			continue
		}
		to.N += more.N
	}
}

func addHugepages(sum, more []Hugepages) []Hugepages {
	for _, h := range more {
		h.Peak = Value{}
		i := slices.IndexFunc(sum, func(s Hugepages) bool { return s.Size == h.Size })
		if i < 0 {
			sum = append(sum, h)
			continue
		}
		addValues([2]*Value{&sum[i].Usage, &h.Usage})
	}
	return sum
}

func addIO(sum, more []DeviceIO) []DeviceIO {
	for _, io := range more {
		i := slices.IndexFunc(sum, func(s DeviceIO) bool { return s.Device == io.Device })
		if i < 0 {
			sum = append(sum, io)
			continue
		}
		sum[i].ReadBytes += io.ReadBytes
		sum[i].WriteBytes += io.WriteBytes
		sum[i].ReadOperations += io.ReadOperations
		sum[i].WriteOperations += io.WriteOperations
	}
	return sum
}
