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

// own says whether a process is the node's, and not a pod's. Where namespaces cannot be read,
// every process is.
func (n Node) own(pid int) bool {
	ours, err := os.Readlink(n.at("/proc/1/ns/pid"))
	if err != nil {
		return true
	}
	its, err := os.Readlink(n.at(filepath.Join("/proc", strconv.Itoa(pid), "ns/pid")))
	return err == nil && its == ours
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

// arguments are a process's command line.
func (n Node) arguments(pid int) []string {
	text, err := os.ReadFile(n.at(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
}

// flag is the value of --name=value or --name value, the last one given.
func flag(arguments []string, name string) string {
	value := ""
	for i, a := range arguments {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			value = v
		} else if a == "--"+name && i+1 < len(arguments) {
			value = arguments[i+1]
		}
	}
	return value
}
