package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// ControllerSet is what the host's cgroups can limit.
type ControllerSet struct {
	names []string
	swap  bool
}

// Controllers returns the controllers that are usable on this host. It is read
// once in the life of the process.
func Controllers() ControllerSet { return hostControllers() }

var hostControllers = sync.OnceValue(func() ControllerSet {
	return host().controllers("/proc/self/cgroup")
})

// Has reports whether a controller is there, by the kernel's name.
func (s ControllerSet) Has(name string) bool { return slices.Contains(s.names, name) }

// HasHugetlb reports whether huge pages can be limited. Where not, hugepage
// limits of a pod must be left out, or the runtime fails.
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

// unifiedSwap looks for the swap limit where v2 has it: in every cgroup but the
// root, so in the daemon's own, or in any child of the root.
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
