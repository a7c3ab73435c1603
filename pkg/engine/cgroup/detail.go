package cgroup

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
)

// Detail is what a cgroup tells beside its Stats. Reading it takes some twenty
// files: it is for metrics that are asked for a few times a minute.
type Detail struct {
	Stats
	// CPUUserNano and CPUSystemNano are parts of the CPU time.
	CPUUserNano, CPUSystemNano Value
	// Periods are those in which a CPU quota was applied, and ThrottledPeriods those
	// in which it was used up; ThrottledNano is how long processes then waited.
	Periods, ThrottledPeriods, ThrottledNano Value
	// KernelMemory is memory of the kernel, PeakMemory the most that was ever
	// charged, MemoryFailures how often the limit was hit, and OOMKills how many
	// processes were killed at it. MemoryReservation is what is spared for longest.
	KernelMemory, PeakMemory, MemoryFailures, OOMKills, MemoryReservation Value
	// OwnPageFaults and OwnMajorPageFaults are those without the cgroup's children,
	// where the host tells them apart.
	OwnPageFaults, OwnMajorPageFaults Value
	// PidsLimit is how many processes and threads there may be; not known is
	// unlimited.
	PidsLimit Value
	// Hugetlb has one entry for each size of huge pages that the host has.
	Hugetlb []Hugepages
	IO      []DeviceIO
}

// Hugepages is what is used of one size of huge pages, in bytes.
type Hugepages struct {
	// Size is as the kernel writes it: 2MB, 1GB.
	Size        string
	Usage, Peak Value
}

// ReadDetail reads what a cgroup tells. A cgroup that is gone is
// errdefs.ErrNotFound.
func ReadDetail(p Paths) (Detail, error) {
	stats, err := ReadStats(p)
	if err != nil {
		return Detail{}, err
	}
	d := Detail{Stats: stats}
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	read := d.readV1
	if p.Unified != "" {
		read = d.readUnified
	}
	if err := read(p, buf); err != nil {
		return Detail{}, fmt.Errorf("cgroup statistics: %w", err)
	}
	if d.IO, err = ReadIO(p); err != nil && !errdefs.IsNotFound(err) {
		return Detail{}, err
	}
	return d, nil
}

// part is some files of one directory.
type part struct {
	dir  string
	read func(*dir, *buffer)
}

// readParts passes over directories that are missing.
func readParts(buf *buffer, parts ...part) error {
	var errs []error
	for _, p := range parts {
		if p.dir == "" {
			continue
		}
		d, ok, err := openDir(p.dir)
		if err != nil {
			errs = append(errs, err)
		}
		if !ok {
			continue
		}
		p.read(d, buf)
		errs = append(errs, d.err)
		d.close()
	}
	return errors.Join(errs...)
}

func (d *Detail) readUnified(p Paths, buf *buffer) error {
	return readParts(buf, part{p.Unified, d.unified})
}

func (d *Detail) unified(dir *dir, buf *buffer) {
	fields(dir.read("cpu.stat", buf), func(key string, n uint64) {
		switch key {
		case "user_usec":
			d.CPUUserNano = Value{n * 1000, true}
		case "system_usec":
			d.CPUSystemNano = Value{n * 1000, true}
		case "nr_periods":
			d.Periods = Value{n, true}
		case "nr_throttled":
			d.ThrottledPeriods = Value{n, true}
		case "throttled_usec":
			d.ThrottledNano = Value{n * 1000, true}
		}
	})
	if n, ok := field(dir.read("memory.stat", buf), "kernel"); ok {
		d.KernelMemory = Value{n, true}
	}
	fields(dir.read("memory.events", buf), func(key string, n uint64) {
		switch key {
		case "max":
			d.MemoryFailures = Value{n, true}
		case "oom_kill":
			d.OOMKills = Value{n, true}
		}
	})
	d.PeakMemory = dir.number("memory.peak", buf)
	d.MemoryReservation = dir.number("memory.low", buf)
	d.OwnPageFaults, d.OwnMajorPageFaults = d.PageFaults, d.MajorPageFaults
	d.PidsLimit = dir.number("pids.max", buf)
	for _, size := range hugepageSizes() {
		if usage := dir.number("hugetlb."+size+".current", buf); usage.Known {
			d.Hugetlb = append(d.Hugetlb, Hugepages{Size: size, Usage: usage})
		}
	}
}

func (d *Detail) readV1(p Paths, buf *buffer) error {
	return readParts(buf,
		part{p.V1["cpuacct"], d.v1CPUTime}, part{p.V1["cpu"], d.v1Quota}, part{p.V1["memory"], d.v1Memory},
		part{p.V1["pids"], func(dir *dir, buf *buffer) { d.PidsLimit = dir.number("pids.max", buf) }},
		part{p.V1["hugetlb"], d.v1Hugetlb},
	)
}

func (d *Detail) v1CPUTime(dir *dir, buf *buffer) {
	d.CPUUserNano = dir.number("cpuacct.usage_user", buf)
	d.CPUSystemNano = dir.number("cpuacct.usage_sys", buf)
}

func (d *Detail) v1Quota(dir *dir, buf *buffer) {
	fields(dir.read("cpu.stat", buf), func(key string, n uint64) {
		switch key {
		case "nr_periods":
			d.Periods = Value{n, true}
		case "nr_throttled":
			d.ThrottledPeriods = Value{n, true}
		case "throttled_time":
			d.ThrottledNano = Value{n, true}
		}
	})
}

func (d *Detail) v1Memory(dir *dir, buf *buffer) {
	fields(dir.read("memory.stat", buf), func(key string, n uint64) {
		switch key {
		case "pgfault":
			d.OwnPageFaults = Value{n, true}
		case "pgmajfault":
			d.OwnMajorPageFaults = Value{n, true}
		}
	})
	if n, ok := field(dir.read("memory.oom_control", buf), "oom_kill"); ok {
		d.OOMKills = Value{n, true}
	}
	d.KernelMemory = dir.number("memory.kmem.usage_in_bytes", buf)
	d.PeakMemory = dir.number("memory.max_usage_in_bytes", buf)
	d.MemoryFailures = dir.number("memory.failcnt", buf)
	d.MemoryReservation = limited(dir.number("memory.soft_limit_in_bytes", buf))
}

func (d *Detail) v1Hugetlb(dir *dir, buf *buffer) {
	for _, size := range hugepageSizes() {
		usage := dir.number("hugetlb."+size+".usage_in_bytes", buf)
		if usage.Known {
			d.Hugetlb = append(d.Hugetlb, Hugepages{Size: size, Usage: usage, Peak: dir.number("hugetlb."+size+".max_usage_in_bytes", buf)})
		}
	}
}
