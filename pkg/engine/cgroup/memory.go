package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// MemoryKey identifies the cgroup by the directory that counts its memory. It is empty without a
// cgroup, and on a host that does not count memory.
func (p Paths) MemoryKey() string { return p.Dir("memory") }

// Contains reports whether a process with the ProcessKey key is in the cgroup or below it.
func (p Paths) Contains(key string) bool {
	dir := p.MemoryKey()
	return dir != "" && (key == dir || strings.HasPrefix(key, dir+"/"))
}

// ProcessKey returns the MemoryKey of a process's cgroup; empty if the process has exited or memory
// is not counted.
func ProcessKey(pid int) (string, error) {
	where, err := procfs.CgroupsOf(pid)
	if err != nil {
		return "", ignoreGone(err)
	}
	return host().memoryOf(where), nil
}

// memoryOf returns the directory that counts the memory of a process with these cgroups.
func (h hierarchies) memoryOf(where map[string]string) string {
	mount, controller := h.unified, ""
	if mount == "" {
		mount, controller = h.v1["memory"], "memory"
	}
	inside, there := where[controller]
	if mount == "" || !there {
		return ""
	}
	return filepath.Join(mount, inside)
}

// Children returns the cgroups directly below, by name; none if the cgroup is gone.
func (p Paths) Children() (map[string]Paths, error) {
	all := map[string]Paths{}
	dir := p.MemoryKey()
	if dir == "" {
		return all, nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cgroups in %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.IsDir() {
			all[e.Name()] = p.below("/" + e.Name())
		}
	}
	return all, nil
}

// Own returns the processes in the cgroup itself, without those below it.
func (p Paths) Own() ([]int, error) {
	dir := p.MemoryKey()
	if dir == "" {
		return nil, nil
	}
	pids, err := members(dir)
	if err != nil {
		return nil, fmt.Errorf("cgroup processes: %w", err)
	}
	return pids, nil
}

// OOMKills counts the processes that the kernel killed in a cgroup, or in its children, for lack of
// memory. It is 0 on kernels before 4.13 with v1, which do not count, and for a cgroup that is
// gone, so it must be read before the removal.
func OOMKills(p Paths) (uint64, error) {
	file := "memory.events"
	if p.Unified == "" {
		file = "memory.oom_control"
	}
	var kills Value
	if _, err := readDir(p.MemoryKey(), func(d *dir) { kills = d.field(file, "oom_kill") }); err != nil {
		return 0, fmt.Errorf("count oom kills: %w", err)
	}
	return kills.N, nil
}

// MemoryHits counts how often the processes of a cgroup hit its own memory limit. It is 0 if
// unknown: for a cgroup that is gone, and before Linux 5.2 on v2.
func MemoryHits(p Paths) uint64 {
	var hits Value
	_, _ = readDir(p.MemoryKey(), func(d *dir) {
		if p.Unified != "" {
			hits = d.field("memory.events.local", "max")
		} else {
			hits = d.number("memory.failcnt")
		}
	})
	return hits.N
}
