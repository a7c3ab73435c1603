package doctor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// process is one that runs on the node.
type process struct {
	pid  int
	name string
}

func (p process) String() string { return p.name + " (pid " + strconv.Itoa(p.pid) + ")" }

// processes lists them by /proc.
func (n Node) processes() []process {
	var all []process
	for _, name := range n.list("/proc") {
		pid, err := strconv.Atoi(name)
		if err == nil {
			all = append(all, process{pid, n.value(filepath.Join("/proc", name, "comm"))})
		}
	}
	return all
}

// listener returns who listens on a unix socket: whoever has a descriptor of
// it, and not merely a connection to it.
func (n Node) listener(path string) (process, bool) {
	text, err := n.read("/proc/net/unix")
	if err != nil {
		return process{}, false
	}
	for line := range strings.Lines(text) {
		// Num RefCount Protocol Flags Type St Inode Path; the flag is __SO_ACCEPTCON.
		f := strings.Fields(line)
		if len(f) == 8 && f[3] == "00010000" && same(f[7], path) {
			return n.holder(f[6])
		}
	}
	return process{}, false
}

// same knows that /var/run is /run.
func same(a, b string) bool { return plain(a) == plain(b) }

func plain(path string) string {
	path = strings.TrimPrefix(path, "unix://")
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		path = "/run/" + rest
	}
	return filepath.Clean(path)
}

// holder is the first process with a descriptor of a socket's inode.
func (n Node) holder(inode string) (process, bool) {
	want := "socket:[" + inode + "]"
	for _, p := range n.processes() {
		fds := filepath.Join("/proc", strconv.Itoa(p.pid), "fd")
		for _, fd := range n.list(fds) {
			if link, err := os.Readlink(n.at(filepath.Join(fds, fd))); err == nil && link == want {
				return p, true
			}
		}
	}
	return process{}, false
}
