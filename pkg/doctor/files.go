package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxFile is the size of the largest file that is read, in bytes.
const maxFile = 4 << 20

func (n Node) at(path string) string { return filepath.Join(n.Root, path) }

// read returns a file's text; the error is ErrNotExist if the file is missing.
func (n Node) read(path string) (string, error) {
	info, err := os.Stat(n.at(path))
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", path)
	case info.Size() > maxFile:
		return "", fmt.Errorf("%s is too large: %d bytes, at most %d can be read", path, info.Size(), maxFile)
	}
	data, err := os.ReadFile(n.at(path))
	return string(data), err
}

// value returns the trimmed text of a file; "" if it cannot be read.
func (n Node) value(path string) string {
	text, err := n.read(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

func (n Node) exists(path string) bool {
	_, err := os.Stat(n.at(path))
	return err == nil
}

func (n Node) isSocket(path string) bool {
	info, err := os.Stat(n.at(path))
	return err == nil && info.Mode().Type() == fs.ModeSocket
}

// executable returns why a path cannot be executed, or "".
func (n Node) executable(path string) string {
	info, err := os.Stat(n.at(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "does not exist"
	case err != nil:
		return "cannot be read: " + err.Error()
	case !info.Mode().IsRegular():
		return "is not a regular file"
	case info.Mode()&0o111 == 0:
		return "is not executable"
	}
	return ""
}

// list returns the names in a directory, sorted; nil if it cannot be read.
func (n Node) list(dir string) []string {
	entries, err := os.ReadDir(n.at(dir))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

type process struct {
	pid  int
	name string
}

func (p process) String() string { return p.name + " (pid " + strconv.Itoa(p.pid) + ")" }

// processes lists the node's processes from /proc.
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

// listener returns the process that listens on a unix socket: the holder of the listening
// descriptor, not of a connection.
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

// same reports whether two paths or URLs of sockets are equal; /var/run is /run.
func same(a, b string) bool { return plain(a) == plain(b) }

func plain(path string) string {
	path = strings.TrimPrefix(path, "unix://")
	if rest, ok := strings.CutPrefix(path, "/var/run/"); ok {
		path = "/run/" + rest
	}
	return filepath.Clean(path)
}

// holder returns the first process with a descriptor of a socket's inode.
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
