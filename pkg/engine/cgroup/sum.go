package cgroup

import "time"

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
	for _, pair := range []struct{ to, more *Value }{
		{&s.CPUUsageNano, &o.CPUUsageNano},
		{&s.MemoryUsage, &o.MemoryUsage}, {&s.WorkingSet, &o.WorkingSet}, {&s.RSS, &o.RSS},
		{&s.Cache, &o.Cache}, {&s.MappedFile, &o.MappedFile}, {&s.ActiveFile, &o.ActiveFile}, {&s.InactiveFile, &o.InactiveFile},
		{&s.PageFaults, &o.PageFaults}, {&s.MajorPageFaults, &o.MajorPageFaults}, {&s.MemoryLimit, &o.MemoryLimit},
		{&s.SwapUsage, &o.SwapUsage}, {&s.SwapLimit, &o.SwapLimit}, {&s.Pids, &o.Pids},
	} {
		if !pair.more.Known || !pair.to.Known {
			*pair.to = Value{}
			continue
		}
		pair.to.N += pair.more.N
	}
}
