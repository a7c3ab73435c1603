package cgroups

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// leftoverRounds bounds the scans of the container's processes: each scan finds processes that were
// forked during the previous one.
const leftoverRounds = 20

// KillLeftovers kills the processes that an exec left in the container's cgroup and returns their
// number. It finds them by leader, which was the exec's first process, by the session that the
// runtime created for the exec (0 if none), and by the exec's outputs.
func (c Cgroup) KillLeftovers(leader, session int, outputs ...string) int {
	held := map[string]bool{}
	for _, path := range outputs {
		if path, err := filepath.EvalSymlinks(path); err == nil && path != "" {
			held[path] = true
		}
	}
	killed := 0
	for range leftoverRounds {
		n := c.killRound(leader, session, held)
		if n == 0 {
			break
		}
		killed += n
		time.Sleep(time.Millisecond)
	}
	return killed
}

func (c Cgroup) killRound(leader, session int, outputs map[string]bool) int {
	pids, err := c.ProcessIDs()
	if err != nil {
		return 0
	}
	stats := map[int]procfs.Stat{}
	for _, pid := range pids {
		if stat, err := procfs.StatOf(pid); err == nil && !stat.Ended() {
			stats[pid] = stat
		}
	}
	killed := 0
	for pid := range stats {
		if pid == leader || pid == os.Getpid() {
			continue
		}
		if belongs(pid, leader, session, stats) || holds(pid, outputs) {
			if unix.Kill(pid, unix.SIGKILL) == nil {
				killed++
			}
		}
	}
	return killed
}

// belongs reports whether a process is in the session of an exec, is in the session or process
// group of its leader, or descends from the leader.
func belongs(pid, leader, session int, all map[int]procfs.Stat) bool {
	if leader <= 1 {
		return false
	}
	stat := all[pid]
	if stat.Session == leader || stat.Group == leader || session > 1 && stat.Session == session {
		return true
	}
	for range len(all) {
		if stat.Parent == leader {
			return true
		}
		next, ok := all[stat.Parent]
		if !ok {
			return false
		}
		stat = next
	}
	return false
}

// holds reports whether a process has one of the files open, by the links in /proc: a stat of the
// files themselves would hang on a dead mount.
func holds(pid int, files map[string]bool) bool {
	if len(files) == 0 {
		return false
	}
	dir := procfs.Path(pid, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if file, err := os.Readlink(dir + "/" + e.Name()); err == nil && files[file] {
			return true
		}
	}
	return false
}
