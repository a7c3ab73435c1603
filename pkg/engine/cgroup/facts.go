package cgroup

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Facts are what the cgroups of this host measure. They do not change while the host is up.
type Facts struct {
	// CPUTime, Quota, Memory, Pids and BlockIO report that a controller counts them.
	CPUTime, Quota, Memory, Pids, BlockIO bool
	// Swap, KernelMemory and PeakMemory report that they are counted separately.
	Swap, KernelMemory, PeakMemory bool
	// Hugetlb reports that huge pages are counted, HugetlbPeak that their peak is, too.
	Hugetlb, HugetlbPeak bool
	// Pressure reports that stalls are counted.
	Pressure bool
}

// HostFacts returns the facts of this host, which are read once per process.
func HostFacts() Facts { return hostFacts() }

var hostFacts = sync.OnceValue(func() Facts {
	return host().facts(Controllers(), len(hugepageSizes()) > 0)
})

func (h hierarchies) facts(c ControllerSet, hugepages bool) Facts {
	f := Facts{
		CPUTime: true, Memory: c.Has("memory"), Pids: c.Has("pids"), Quota: c.Has("cpu"),
		BlockIO: c.Has("io"), Swap: c.Has("memory") && c.HasSwap(), Hugetlb: c.HasHugetlb() && hugepages,
	}
	if h.unified == "" {
		f.CPUTime, f.BlockIO, f.HugetlbPeak = c.Has("cpuacct"), c.Has("blkio"), f.Hugetlb
		f.PeakMemory = f.Memory
		f.KernelMemory = exists(filepath.Join(h.v1["memory"], "memory.kmem.usage_in_bytes"))
		return f
	}
	// The root cgroup does not have all files of its children.
	f.PeakMemory = anyExists(h.unified, "memory.peak")
	f.Pressure = anyExists(h.unified, "cpu.pressure")
	stat, err := os.ReadFile(filepath.Join(h.unified, "memory.stat"))
	f.KernelMemory = err == nil && bytes.Contains(stat, []byte("\nkernel "))
	return f
}

func anyExists(root, file string) bool {
	children, err := filepath.Glob(filepath.Join(root, "*", file))
	return err == nil && len(children) > 0
}

// hugepageSizes returns the host's sizes of huge pages, in the form of cgroup file names.
var hugepageSizes = sync.OnceValue(func() []string {
	return readHugepageSizes("/sys/kernel/mm/hugepages")
})

// readHugepageSizes reads the names of directories such as hugepages-2048kB.
func readHugepageSizes(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var sizes []string
	for _, entry := range entries {
		text, ok := strings.CutSuffix(strings.TrimPrefix(entry.Name(), "hugepages-"), "kB")
		kilobytes, err := strconv.ParseUint(text, 10, 64)
		if ok && err == nil {
			sizes = append(sizes, sizeName(kilobytes))
		}
	}
	slices.Sort(sizes)
	return sizes
}

// sizeName formats a size as in the file names of the hugetlb controller.
func sizeName(kilobytes uint64) string {
	switch {
	case kilobytes >= 1<<20:
		return fmt.Sprintf("%dGB", kilobytes>>20)
	case kilobytes >= 1<<10:
		return fmt.Sprintf("%dMB", kilobytes>>10)
	}
	return fmt.Sprintf("%dKB", kilobytes)
}

// ControllerSet is the set of resources that the host's cgroups can limit.
type ControllerSet struct {
	names []string
	swap  bool
}

// Controllers returns the usable controllers of this host. They are read once per process.
func Controllers() ControllerSet { return hostControllers() }

var hostControllers = sync.OnceValue(func() ControllerSet {
	return host().controllers("/proc/self/cgroup")
})

// Has reports whether a controller exists, by the kernel's name.
func (s ControllerSet) Has(name string) bool { return slices.Contains(s.names, name) }

// HasHugetlb reports whether huge pages can be limited. If not, a pod's hugepage limits must be
// omitted, or the runtime fails.
func (s ControllerSet) HasHugetlb() bool { return s.Has("hugetlb") }

// HasSwap reports whether swap can be limited: v1 needs swapaccount on the
// kernel's command line, v2 a kernel that was built for it.
func (s ControllerSet) HasSwap() bool { return s.swap }

func (h hierarchies) controllers(selfCgroup string) ControllerSet {
	if h.unified == "" {
		return h.v1Controllers()
	}
	s := ControllerSet{swap: h.unifiedSwap(selfCgroup)}
	if b, err := os.ReadFile(filepath.Join(h.unified, "cgroup.controllers")); err == nil {
		s.names = strings.Fields(string(b))
		slices.Sort(s.names)
	}
	return s
}

func (h hierarchies) v1Controllers() ControllerSet {
	var s ControllerSet
	for name := range h.v1 {
		if name != unifiedName && !strings.HasPrefix(name, "name=") {
			s.names = append(s.names, name)
		}
	}
	slices.Sort(s.names)
	s.swap = exists(filepath.Join(h.v1["memory"], "memory.memsw.limit_in_bytes"))
	return s
}

// unifiedSwap reports whether a swap limit exists. v2 has its file in every cgroup but the root:
// the daemon's own, or a child of the root, shows it.
func (h hierarchies) unifiedSwap(selfCgroup string) bool {
	const file = "memory.swap.max"
	if b, err := os.ReadFile(selfCgroup); err == nil {
		own := strings.TrimPrefix(strings.TrimSpace(string(b)), "0::")
		if exists(filepath.Join(h.unified, own, file)) {
			return true
		}
	}
	return anyExists(h.unified, file)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
