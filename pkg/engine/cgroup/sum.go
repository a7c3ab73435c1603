package cgroup

import (
	"slices"
	"time"
)

// Sum is the usage of several cgroups together, none of which contains another. A number is known
// only if it is known for all of them. Pressures cannot be added and are omitted; a limit is
// omitted, too, unless all have one. The sum of no cgroups is zero.
func Sum(parts ...Stats) Stats {
	if len(parts) == 0 {
		none := Value{Known: true}
		return Stats{Time: time.Now(), CPUUsageNano: none, MemoryUsage: none, WorkingSet: none, RSS: none, Pids: none}
	}
	sum := parts[0]
	sum.CPUPressure, sum.MemoryPressure, sum.IOPressure = nil, nil, nil
	for _, part := range parts[1:] {
		addValues(sum.values(), part.values())
	}
	return sum
}

func (s *Stats) values() []*Value {
	return []*Value{
		&s.CPUUsageNano, &s.MemoryUsage, &s.WorkingSet, &s.RSS, &s.Cache, &s.MappedFile, &s.ActiveFile, &s.InactiveFile,
		&s.PageFaults, &s.MajorPageFaults, &s.MemoryLimit, &s.SwapUsage, &s.SwapLimit, &s.Pids,
	}
}

// SumDetails is Sum for details. Peaks cannot be added either, because they happened at different
// times, and are omitted.
func SumDetails(parts ...Detail) Detail {
	var sum Detail
	stats := make([]Stats, len(parts))
	for i, part := range parts {
		stats[i] = part.Stats
		hugetlb, io := addHugepages(sum.Hugetlb, part.Hugetlb), addIO(sum.IO, part.IO)
		if i == 0 {
			sum = part
		} else {
			addValues(sum.values(), part.values())
		}
		sum.Hugetlb, sum.IO = hugetlb, io
	}
	sum.Stats, sum.PeakMemory = Sum(stats...), Value{}
	return sum
}

// values omits those of Stats, and PeakMemory.
func (d *Detail) values() []*Value {
	return []*Value{
		&d.CPUUserNano, &d.CPUSystemNano, &d.Periods, &d.ThrottledPeriods, &d.ThrottledNano, &d.KernelMemory,
		&d.MemoryFailures, &d.OOMKills, &d.MemoryReservation, &d.OwnPageFaults, &d.OwnMajorPageFaults, &d.PidsLimit,
	}
}

// addValues adds more to sum, one by one; a sum is unknown if one of its values is.
func addValues(sum, more []*Value) {
	for i, to := range sum {
		if to.Known && more[i].Known {
			to.N += more[i].N
		} else {
			*to = Value{}
		}
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
		addValues([]*Value{&sum[i].Usage}, []*Value{&h.Usage})
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
