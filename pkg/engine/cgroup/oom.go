package cgroup

import "fmt"

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
