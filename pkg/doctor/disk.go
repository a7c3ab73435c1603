package doctor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// disk looks at the room that images, records and containers have. A kubelet evicts pods
// below the same shares.
func disk(n Node) []Finding {
	var found []Finding
	places := []string{n.Config.Engine.Root}
	if n.Config.Engine.WritableRoot != "" {
		places = append(places, n.Config.Engine.WritableRoot)
	}
	for _, place := range places {
		var s unix.Statfs_t
		if unix.Statfs(n.at(place), &s) != nil {
			continue // the daemon makes it
		}
		level := scarce(s)
		if level == OK {
			continue
		}
		found = append(found, Finding{Level: level, Text: place + " is almost full: " + atomicfile.Room(n.at(place)),
			Next: "berth image prune, remove what else fills it, or enlarge the filesystem"})
	}
	return or(found, fmt.Sprintf("%s has room: %s", places[0], atomicfile.Room(n.at(places[0]))))
}

// scarce is how bad it is that a filesystem has no more space and inodes. Pure.
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
