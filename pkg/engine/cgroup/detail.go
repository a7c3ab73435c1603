package cgroup

import "fmt"

// Detail is the Stats of a cgroup and further usage. It takes some twenty files to read and is for
// metrics that are scraped a few times a minute.
type Detail struct {
	Stats
	// CPUUserNano and CPUSystemNano are parts of the CPU time.
	CPUUserNano, CPUSystemNano Value
	// Periods counts the periods in which a CPU quota applied, ThrottledPeriods those in which it
	// was used up, and ThrottledNano the time for which processes then waited.
	Periods, ThrottledPeriods, ThrottledNano Value
	// KernelMemory is memory of the kernel, PeakMemory the highest usage, MemoryFailures how often
	// the limit was hit, and OOMKills how many processes were killed at it. MemoryReservation is
	// the protected amount, which is reclaimed last.
	KernelMemory, PeakMemory, MemoryFailures, OOMKills, MemoryReservation Value
	// OwnPageFaults and OwnMajorPageFaults exclude the cgroup's children, if the host counts them
	// separately.
	OwnPageFaults, OwnMajorPageFaults Value
	// PidsLimit is the limit of processes and threads; unknown means unlimited.
	PidsLimit Value
	// Hugetlb has one entry for each size of huge pages that the host has.
	Hugetlb []Hugepages
	// IO is by device; empty without the controller.
	IO []DeviceIO
}

// Hugepages is the usage of one size of huge pages, in bytes.
type Hugepages struct {
	// Size is in the kernel's format: 2MB, 1GB.
	Size        string
	Usage, Peak Value
}

// ReadDetail reads the details of a cgroup. A cgroup that is gone is errdefs.ErrNotFound.
func ReadDetail(p Paths) (Detail, error) {
	stats, err := ReadStats(p)
	if err != nil {
		return Detail{}, err
	}
	d := Detail{Stats: stats}
	if _, err := readParts(d.parts(p)...); err != nil {
		return Detail{}, fmt.Errorf("cgroup statistics: %w", err)
	}
	return d, nil
}

func (d *Detail) parts(p Paths) []part {
	if p.Unified != "" {
		return []part{{p.Unified, d.readUnified}}
	}
	return []part{
		{p.Dir("cpuacct"), d.readV1CPUTime},
		{p.Dir("cpu"), d.readV1Quota},
		{p.Dir("memory"), d.readV1Memory},
		{p.Dir("pids"), d.readPids},
		{p.Dir("hugetlb"), d.readV1Hugetlb},
		{p.Dir("blkio"), func(dir *dir) { d.IO = readV1IO(dir) }},
	}
}

func (d *Detail) readUnified(dir *dir) {
	dir.fields("cpu.stat",
		fieldTarget{"user_usec", &d.CPUUserNano},
		fieldTarget{"system_usec", &d.CPUSystemNano},
		fieldTarget{"nr_periods", &d.Periods},
		fieldTarget{"nr_throttled", &d.ThrottledPeriods},
		fieldTarget{"throttled_usec", &d.ThrottledNano},
	)
	for _, v := range []*Value{&d.CPUUserNano, &d.CPUSystemNano, &d.ThrottledNano} {
		v.N *= 1000 // from microseconds
	}
	d.KernelMemory = dir.field("memory.stat", "kernel")
	dir.fields("memory.events", fieldTarget{"max", &d.MemoryFailures}, fieldTarget{"oom_kill", &d.OOMKills})
	d.PeakMemory = dir.number("memory.peak")
	d.MemoryReservation = dir.number("memory.low")
	d.OwnPageFaults, d.OwnMajorPageFaults = d.PageFaults, d.MajorPageFaults
	d.readPids(dir)
	for _, size := range hugepageSizes() {
		if usage := dir.number("hugetlb." + size + ".current"); usage.Known {
			d.Hugetlb = append(d.Hugetlb, Hugepages{Size: size, Usage: usage})
		}
	}
	d.IO = readUnifiedIO(dir)
}

func (d *Detail) readPids(dir *dir) {
	d.Pids = dir.number("pids.current")
	d.PidsLimit = dir.number("pids.max")
}

func (d *Detail) readV1CPUTime(dir *dir) {
	d.CPUUserNano = dir.number("cpuacct.usage_user")
	d.CPUSystemNano = dir.number("cpuacct.usage_sys")
}

func (d *Detail) readV1Quota(dir *dir) {
	dir.fields("cpu.stat",
		fieldTarget{"nr_periods", &d.Periods},
		fieldTarget{"nr_throttled", &d.ThrottledPeriods},
		fieldTarget{"throttled_time", &d.ThrottledNano},
	)
}

func (d *Detail) readV1Memory(dir *dir) {
	dir.fields("memory.stat", fieldTarget{"pgfault", &d.OwnPageFaults}, fieldTarget{"pgmajfault", &d.OwnMajorPageFaults})
	d.OOMKills = dir.field("memory.oom_control", "oom_kill")
	d.KernelMemory = dir.number("memory.kmem.usage_in_bytes")
	d.PeakMemory = dir.number("memory.max_usage_in_bytes")
	d.MemoryFailures = dir.number("memory.failcnt")
	d.MemoryReservation = limited(dir.number("memory.soft_limit_in_bytes"))
}

func (d *Detail) readV1Hugetlb(dir *dir) {
	for _, size := range hugepageSizes() {
		usage := dir.number("hugetlb." + size + ".usage_in_bytes")
		if usage.Known {
			d.Hugetlb = append(d.Hugetlb, Hugepages{Size: size, Usage: usage, Peak: dir.number("hugetlb." + size + ".max_usage_in_bytes")})
		}
	}
}
