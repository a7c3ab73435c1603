package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// inotifyUse is what one user has of the kernel's watches on files.
type inotifyUse struct{ instances, watches int }

// inotify looks whether the daemon, which is root's, can be told of changed files.
func inotify(n Node) []Finding {
	use := n.inotifyOf("0")
	var found []Finding
	for _, limit := range []struct {
		name, what string
		used       int
	}{
		{"max_user_instances", "instances", use.instances},
		{"max_user_watches", "watches", use.watches},
	} {
		most, err := strconv.Atoi(n.value("/proc/sys/fs/inotify/" + limit.name))
		if err != nil || limit.used < most {
			continue
		}
		found = append(found, warn(
			fmt.Sprintf("root uses all of its %d inotify %s: berth polls its files every few seconds instead, and other programs may fail", most, limit.what),
			fmt.Sprintf("sysctl -w fs.inotify.%s=%d, and persist it in /etc/sysctl.d; then systemctl restart berth", limit.name, max(2*most, 8192))))
	}
	return or(found, fmt.Sprintf("root uses %d inotify instances and %d watches, below its limits", use.instances, use.watches))
}

// inotifyOf counts what processes of a user have.
func (n Node) inotifyOf(uid string) inotifyUse {
	var use inotifyUse
	for _, p := range n.processes() {
		dir := filepath.Join("/proc", strconv.Itoa(p.pid))
		if n.userOf(dir) != uid {
			continue
		}
		for _, fd := range n.list(filepath.Join(dir, "fd")) {
			link, err := os.Readlink(n.at(filepath.Join(dir, "fd", fd)))
			if err != nil || link != "anon_inode:inotify" {
				continue
			}
			use.instances++
			use.watches += strings.Count("\n"+n.value(filepath.Join(dir, "fdinfo", fd)), "\ninotify wd:")
		}
	}
	return use
}

// userOf is the real user of a process by its directory.
func (n Node) userOf(dir string) string {
	for line := range strings.Lines(n.value(filepath.Join(dir, "status"))) {
		if rest, ok := strings.CutPrefix(line, "Uid:"); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				return f[0]
			}
		}
	}
	return ""
}
