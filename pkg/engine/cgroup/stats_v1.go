package cgroup

// unlimitedV1 is the least that v1 shows for "no limit": the largest number of
// pages that fits, in bytes. Page sizes differ, so anything near it counts.
const unlimitedV1 = 1 << 62

// readV1 reads cgroup v1. It reports whether the cgroup is there.
// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
func (s *Stats) readV1(paths map[string]string, buf *buffer) (bool, error) {
	found := false
	for _, part := range []struct {
		controller string
		read       func(*dir, *buffer)
	}{
		{"cpuacct", s.v1CPU},
		{"memory", s.v1Memory},
		{"pids", s.v1Pids},
	} {
		path, mounted := paths[part.controller]
		if !mounted {
			continue
		}
		d, ok, err := openDir(path)
		if err != nil {
			return false, err
		}
		if !ok {
			continue
		}
		part.read(d, buf)
		err = d.err
		d.close()
		if err != nil {
			return false, err
		}
		found = true
	}
	return found, nil
}

func (s *Stats) v1CPU(d *dir, buf *buffer) { s.CPUUsageNano = d.number("cpuacct.usage", buf) }

func (s *Stats) v1Pids(d *dir, buf *buffer) { s.Pids = d.number("pids.current", buf) }

func (s *Stats) v1Memory(d *dir, buf *buffer) {
	s.MemoryUsage = d.number("memory.usage_in_bytes", buf)
	s.MemoryLimit = limited(d.number("memory.limit_in_bytes", buf))
	var memory, memsw uint64
	fields(d.read("memory.stat", buf), func(key string, n uint64) {
		switch key {
		case "total_rss":
			s.RSS = Value{n, true}
		case "total_cache":
			s.Cache = Value{n, true}
		case "total_mapped_file":
			s.MappedFile = Value{n, true}
		case "total_active_file":
			s.ActiveFile = Value{n, true}
		case "total_inactive_file":
			s.InactiveFile = Value{n, true}
		case "total_pgfault":
			s.PageFaults = Value{n, true}
		case "total_pgmajfault":
			s.MajorPageFaults = Value{n, true}
		case "total_swap":
			s.SwapUsage = Value{n, true}
		case "hierarchical_memory_limit":
			memory = n
		case "hierarchical_memsw_limit":
			memsw = n
		}
	})
	s.setWorkingSet()
	if limited(Value{memsw, memsw > 0}).Known && memsw >= memory {
		s.SwapLimit = Value{memsw - memory, true}
	}
}

func limited(v Value) Value {
	if v.N >= unlimitedV1 {
		return Value{}
	}
	return v
}
