package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// disk checks the space for images, records and containers. It warns below a kubelet's default
// eviction limits for the node's root filesystem.
func disk(n Node) []Finding {
	var found []Finding
	places := []string{n.Config.Engine.Root}
	if n.Config.Engine.WritableRoot != "" {
		places = append(places, n.Config.Engine.WritableRoot)
	}
	for _, place := range places {
		var s unix.Statfs_t
		if unix.Statfs(n.at(place), &s) != nil {
			continue // the daemon creates it
		}
		level := scarce(s)
		if level == OK {
			continue
		}
		found = append(found, Finding{Level: level, Text: place + " is almost full: " + atomicfile.FreeSpace(n.at(place)),
			Next: "run \"berth image prune\", remove other files, or enlarge the filesystem"})
	}
	return or(found, fmt.Sprintf("%s has room: %s", places[0], atomicfile.FreeSpace(n.at(places[0]))))
}

// scarce returns the level for a filesystem's free space and inodes. Pure.
func scarce(s unix.Statfs_t) Level {
	share := func(free, all uint64) float64 {
		if all == 0 {
			return 1 // btrfs and the like do not count inodes
		}
		return float64(free) / float64(all)
	}
	space, inodes := share(s.Bavail, s.Blocks), share(s.Ffree, s.Files)
	switch {
	case space < 0.01 || inodes < 0.01:
		return Fail
	case space < 0.10 || inodes < 0.05:
		return Warn
	}
	return OK
}

// inotify checks that the daemon, which runs as root, can watch files for changes.
func inotify(n Node) []Finding {
	instances, watches := n.inotifyOf("0")
	var found []Finding
	for _, limit := range []struct {
		name, what string
		used       int
	}{
		{"max_user_instances", "instances", instances},
		{"max_user_watches", "watches", watches},
	} {
		most, err := strconv.Atoi(n.value("/proc/sys/fs/inotify/" + limit.name))
		if err != nil || limit.used < most {
			continue
		}
		found = append(found, warn(
			fmt.Sprintf("root uses all of its %d inotify %s: berth polls its files every few seconds instead of watching them, and other programs may fail", most, limit.what),
			fmt.Sprintf("sysctl -w fs.inotify.%s=%d, and persist it in /etc/sysctl.d; then systemctl restart berth", limit.name, max(2*most, 8192))))
	}
	return or(found, fmt.Sprintf("root uses %d inotify instances and %d watches, below its limits", instances, watches))
}

// inotifyOf counts the inotify instances and watches of a user's processes.
func (n Node) inotifyOf(uid string) (instances, watches int) {
	for _, p := range n.processes() {
		dir := filepath.Join("/proc", strconv.Itoa(p.pid))
		if user, _, _ := strings.Cut(field(n.value(filepath.Join(dir, "status")), "Uid:"), "\t"); user != uid {
			continue
		}
		for _, fd := range n.list(filepath.Join(dir, "fd")) {
			link, err := os.Readlink(n.at(filepath.Join(dir, "fd", fd)))
			if err != nil || link != "anon_inode:inotify" {
				continue
			}
			instances++
			watches += strings.Count("\n"+n.value(filepath.Join(dir, "fdinfo", fd)), "\ninotify wd:")
		}
	}
	return instances, watches
}
