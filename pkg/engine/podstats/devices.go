package podstats

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/podmetrics"
)

// devices caches the names of block devices by their numbers for one list only: a device that is
// added later may reuse the numbers.
type devices struct{ names sync.Map }

func (d *devices) filesystem(path string) podmetrics.Filesystem {
	fs := podmetrics.Filesystem{Device: d.at(path)}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err == nil {
		fs.Limit, fs.Inodes, fs.InodesFree = cgroup.Known(st.Blocks*uint64(st.Frsize)), cgroup.Known(st.Files), cgroup.Known(st.Ffree)
	}
	return fs
}

// at returns the device of the filesystem at path. For a filesystem without its own block device
// (btrfs, overlayfs) it is the source in the mount table.
func (d *devices) at(path string) string {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return ""
	}
	numbers := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	if unix.Major(st.Dev) != 0 {
		return d.name(numbers)
	}
	mount, err := mountpoint.Of(path)
	if err != nil {
		return numbers
	}
	return mount.Source
}

// name returns the path of a block device, or its numbers if it has none.
func (d *devices) name(numbers string) string {
	if name, ok := d.names.Load(numbers); ok {
		return name.(string)
	}
	name := numbers
	text, _ := os.ReadFile("/sys/dev/block/" + numbers + "/uevent")
	for line := range bytes.Lines(text) {
		if node, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("DEVNAME=")); ok {
			name = "/dev/" + string(node)
		}
	}
	d.names.Store(numbers, name)
	return name
}

func (d *devices) named(all []cgroup.DeviceIO) []podmetrics.BlockIO {
	named := make([]podmetrics.BlockIO, 0, len(all))
	for _, io := range all {
		major, minor, _ := strings.Cut(io.Device, ":")
		named = append(named, podmetrics.BlockIO{Device: d.name(io.Device), Major: major, Minor: minor, DeviceIO: io})
	}
	return named
}
