package cgroup

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Value is a number that may be unknown on a host.
type Value struct {
	N     uint64
	Known bool
}

// Known returns a known Value.
func Known(n uint64) Value { return Value{N: n, Known: true} }

// Stats is the usage of a cgroup, its children included. Sizes are in bytes.
type Stats struct {
	// Time is the time of the measurement.
	Time time.Time
	// CPUUsageNano is the CPU time since the cgroup was created, in nanoseconds.
	CPUUsageNano Value
	// MemoryUsage is all memory charged, WorkingSet the part that cannot be reclaimed easily (usage
	// less inactive file pages, at least 0), RSS the anonymous memory.
	MemoryUsage, WorkingSet, RSS Value
	// Cache is memory of files, and MappedFile the part that a process maps; ActiveFile and
	// InactiveFile distinguish recently used pages.
	Cache, MappedFile, ActiveFile, InactiveFile Value
	// PageFaults and MajorPageFaults are counted since the cgroup was created.
	PageFaults, MajorPageFaults Value
	// MemoryLimit is the cgroup's own limit; unknown means unlimited.
	MemoryLimit Value
	// SwapUsage is the swap in use, SwapLimit its limit; unknown means unlimited, or that swap is
	// not accounted.
	SwapUsage, SwapLimit Value
	// Pids is the number of processes and threads. ReadStats leaves it unknown: no list has a field
	// for it.
	Pids Value
	// CPUPressure, MemoryPressure and IOPressure are nil if the host has no such files (always on
	// cgroup v1).
	CPUPressure, MemoryPressure, IOPressure *Pressure
}

// Pressure is stall information: Some is the time when at least one task waited, Full when all did.
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

// ReadStats reads the usage of a cgroup. The values of a missing controller are unknown; a cgroup
// that is gone altogether is errdefs.ErrNotFound.
func ReadStats(p Paths) (Stats, error) {
	s := Stats{Time: time.Now()}
	found, err := readParts(s.parts(p)...)
	if err != nil {
		return Stats{}, fmt.Errorf("cgroup statistics: %w", err)
	}
	if !found {
		return Stats{}, errdefs.ErrNotFound.WithMessage("cgroup statistics: the cgroup is gone")
	}
	return s, nil
}

// parts returns the directories of a cgroup to read.
// https://docs.kernel.org/admin-guide/cgroup-v2.html
// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
func (s *Stats) parts(p Paths) []part {
	if p.Unified != "" {
		return []part{{p.Unified, s.readUnified}}
	}
	return []part{
		{p.Dir("cpuacct"), func(d *dir) { s.CPUUsageNano = d.number("cpuacct.usage") }},
		{p.Dir("memory"), s.readV1Memory},
	}
}

// setWorkingSet follows the kubelet's definition.
func (s *Stats) setWorkingSet() {
	s.WorkingSet = Value{N: s.MemoryUsage.N - min(s.InactiveFile.N, s.MemoryUsage.N), Known: s.MemoryUsage.Known}
}

func (s *Stats) readUnified(d *dir) {
	s.CPUUsageNano = d.field("cpu.stat", "usage_usec")
	s.CPUUsageNano.N *= 1000
	s.readUnifiedMemory(d)
	s.CPUPressure = d.pressure("cpu.pressure")
	s.MemoryPressure = d.pressure("memory.pressure")
	s.IOPressure = d.pressure("io.pressure")
}

func (s *Stats) readUnifiedMemory(d *dir) {
	s.MemoryUsage = d.number("memory.current")
	if !s.MemoryUsage.Known {
		return
	}
	s.MemoryLimit = d.number("memory.max")
	s.SwapUsage = d.number("memory.swap.current")
	s.SwapLimit = d.number("memory.swap.max")
	d.fields("memory.stat",
		fieldTarget{"anon", &s.RSS},
		fieldTarget{"file", &s.Cache},
		fieldTarget{"file_mapped", &s.MappedFile},
		fieldTarget{"active_file", &s.ActiveFile},
		fieldTarget{"inactive_file", &s.InactiveFile},
		fieldTarget{"pgfault", &s.PageFaults},
		fieldTarget{"pgmajfault", &s.MajorPageFaults},
	)
	s.setWorkingSet()
}

func (s *Stats) readV1Memory(d *dir) {
	s.MemoryUsage = d.number("memory.usage_in_bytes")
	s.MemoryLimit = limited(d.number("memory.limit_in_bytes"))
	var memory, memsw Value
	d.fields("memory.stat",
		fieldTarget{"total_rss", &s.RSS},
		fieldTarget{"total_cache", &s.Cache},
		fieldTarget{"total_mapped_file", &s.MappedFile},
		fieldTarget{"total_active_file", &s.ActiveFile},
		fieldTarget{"total_inactive_file", &s.InactiveFile},
		fieldTarget{"total_pgfault", &s.PageFaults},
		fieldTarget{"total_pgmajfault", &s.MajorPageFaults},
		fieldTarget{"total_swap", &s.SwapUsage},
		fieldTarget{"hierarchical_memory_limit", &memory},
		fieldTarget{"hierarchical_memsw_limit", &memsw},
	)
	s.setWorkingSet()
	if limited(memsw).Known && memsw.N > 0 && memsw.N >= memory.N {
		s.SwapLimit = Known(memsw.N - memory.N)
	}
}

// unlimitedV1 is below every value that v1 shows for no limit: the largest multiple of the page
// size that fits into 63 bits.
const unlimitedV1 = 1 << 62

func limited(v Value) Value {
	if v.N >= unlimitedV1 {
		return Value{}
	}
	return v
}
