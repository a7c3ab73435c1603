package cgroup

import (
	"cmp"
	"fmt"
)

// OOMKills counts the processes that the kernel killed in a cgroup, or in its
// children, for want of memory. It is 0 for a cgroup that is gone, so it must be
// asked before that, and by kernels before 4.13 on v1, which do not count.
func OOMKills(p Paths) (uint64, error) {
	path, file := p.Unified, "memory.events"
	if path == "" {
		path, file = p.V1["memory"], "memory.oom_control"
	}
	if path == "" {
		return 0, nil
	}
	d, ok, err := openDir(path)
	if !ok || err != nil {
		return 0, err
	}
	defer d.close()
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	n, _ := field(d.read(file, buf), "oom_kill")
	if d.err != nil {
		return 0, fmt.Errorf("count oom kills: %w", d.err)
	}
	return n, nil
}

// MemoryHits counts how often the processes of a cgroup ran into its own memory limit. It
// is 0 where that is not known: for a cgroup that is gone, and before Linux 5.2 on v2.
func MemoryHits(p Paths) uint64 {
	path := cmp.Or(p.Unified, p.V1["memory"])
	if path == "" {
		return 0
	}
	d, ok, err := openDir(path)
	if !ok || err != nil {
		return 0
	}
	defer d.close()
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	if p.Unified == "" {
		return d.number("memory.failcnt", buf).N
	}
	n, _ := field(d.read("memory.events.local", buf), "max")
	return n
}
