package cgroup

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Value is a number that a host may not be able to tell.
type Value struct {
	N     uint64
	Known bool
}

// Stats is what a cgroup uses, its children included. Sizes are in bytes.
type Stats struct {
	// Time is when it was read.
	Time time.Time
	// CPUUsageNano is the CPU time since the cgroup exists, in nanoseconds.
	CPUUsageNano Value
	// MemoryUsage is all memory charged, WorkingSet what of it cannot be
	// reclaimed easily (usage less inactive file pages, at least 0), RSS the
	// anonymous memory.
	MemoryUsage, WorkingSet, RSS Value
	// Cache is memory of files, of which MappedFile is mapped by a process;
	// ActiveFile and InactiveFile were used lately or not.
	Cache, MappedFile, ActiveFile, InactiveFile Value
	// PageFaults and MajorPageFaults are counted since the cgroup exists.
	PageFaults, MajorPageFaults Value
	// MemoryLimit is the cgroup's own limit; not known is unlimited.
	MemoryLimit Value
	// SwapUsage is the swap in use, SwapLimit the most that may be; not known is
	// unlimited, or swap is not accounted.
	SwapUsage, SwapLimit Value
	// Pids is the number of processes and threads.
	Pids Value
	// The pressures are nil where the host does not tell (always on cgroup v1).
	CPUPressure, MemoryPressure, IOPressure *Pressure
}

// Pressure is stall information: Some is when at least one task waited, Full
// when all did.
// https://docs.kernel.org/accounting/psi.html
type Pressure struct {
	Some, Full Stall
}

// Stall is a share of time in percent over the last 10, 60 and 300 seconds, and
// the total in nanoseconds.
type Stall struct {
	Avg10, Avg60, Avg300 float64
	TotalNano            uint64
}

// ReadStats reads what a cgroup uses. What a controller that is missing would
// tell is not known; a cgroup that is gone altogether is errdefs.ErrNotFound.
func ReadStats(p Paths) (Stats, error) {
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	s := Stats{Time: time.Now()}
	var found bool
	var err error
	if p.Unified != "" {
		found, err = s.readUnified(p.Unified, buf)
	} else {
		found, err = s.readV1(p.V1, buf)
	}
	if err != nil {
		return Stats{}, fmt.Errorf("cgroup statistics: %w", err)
	}
	if !found {
		return Stats{}, errdefs.ErrNotFound.WithMessage("cgroup statistics: the cgroup is gone")
	}
	return s, nil
}

// setWorkingSet follows the kubelet's definition.
func (s *Stats) setWorkingSet() {
	s.WorkingSet = Value{N: s.MemoryUsage.N - min(s.InactiveFile.N, s.MemoryUsage.N), Known: s.MemoryUsage.Known}
}

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
