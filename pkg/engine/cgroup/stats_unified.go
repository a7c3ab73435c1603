package cgroup

// readUnified reads cgroup v2. It reports whether the cgroup is there.
// https://docs.kernel.org/admin-guide/cgroup-v2.html
func (s *Stats) readUnified(path string, buf *buffer) (bool, error) {
	d, ok, err := openDir(path)
	if !ok || err != nil {
		return false, err
	}
	defer d.close()
	if b := d.read("cpu.stat", buf); b != nil {
		if usec, ok := field(b, "usage_usec"); ok {
			s.CPUUsageNano = Value{usec * 1000, true}
		}
	}
	s.unifiedMemory(d, buf)
	s.Pids = d.number("pids.current", buf)
	s.CPUPressure = d.pressure("cpu.pressure", buf)
	s.MemoryPressure = d.pressure("memory.pressure", buf)
	s.IOPressure = d.pressure("io.pressure", buf)
	return true, d.err
}

func (s *Stats) unifiedMemory(d *dir, buf *buffer) {
	s.MemoryUsage = d.number("memory.current", buf)
	if !s.MemoryUsage.Known {
		return
	}
	s.MemoryLimit = d.number("memory.max", buf)
	s.SwapUsage = d.number("memory.swap.current", buf)
	s.SwapLimit = d.number("memory.swap.max", buf)
	fields(d.read("memory.stat", buf), func(key string, n uint64) {
		switch key {
		case "anon":
			s.RSS = Value{n, true}
		case "file":
			s.Cache = Value{n, true}
		case "file_mapped":
			s.MappedFile = Value{n, true}
		case "active_file":
			s.ActiveFile = Value{n, true}
		case "inactive_file":
			s.InactiveFile = Value{n, true}
		case "pgfault":
			s.PageFaults = Value{n, true}
		case "pgmajfault":
			s.MajorPageFaults = Value{n, true}
		}
	})
	s.setWorkingSet()
}
