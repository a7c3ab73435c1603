package supervisor

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// leftoverRounds bounds how often the container's processes are gone through:
// each round finds those that were forked during the one before.
const leftoverRounds = 20

// killLeftovers kills what an exec left in the container's cgroup and returns
// how many processes that were.
func killLeftovers(p *process, c Cgroup) int {
	outputs := map[string]bool{}
	for _, path := range []string{p.paths.Stdout, p.paths.Stderr} {
		if path, err := filepath.EvalSymlinks(path); err == nil && path != "" {
			outputs[path] = true
		}
	}
	killed := 0
	for range leftoverRounds {
		n := killRound(p, outputs, c)
		if n == 0 {
			break
		}
		killed += n
		time.Sleep(time.Millisecond)
	}
	return killed
}

func killRound(p *process, outputs map[string]bool, c Cgroup) int {
	pids, err := c.processIDs()
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
		if pid == p.identity.PID || pid == os.Getpid() {
			continue
		}
		if belongs(pid, p.identity.PID, p.session, stats) || holds(pid, outputs) {
			if unix.Kill(pid, unix.SIGKILL) == nil {
				killed++
			}
		}
	}
	return killed
}

// execSession is the session that a runtime made for an exec, which its first
// process need not lead (crun's); 0 when it made none, but left the exec in
// ours or in that of the container's first process.
func execSession(exec, first int) int {
	stat, err := procfs.StatOf(exec)
	if err != nil {
		return 0
	}
	for _, other := range []int{0, first} {
		if session, err := unix.Getsid(other); err != nil || stat.Session == session {
			return 0
		}
	}
	return stat.Session
}

// belongs says whether a process is in the session of an exec, or in the
// session or process group of its leader, or descends from that.
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

// holds says whether a process has one of the files open, by what the links in
// /proc say: to look at the files themselves would wait for a dead mount.
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
