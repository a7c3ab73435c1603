package cgroup

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// processHierarchies are the v1 hierarchies to look for processes in, best first. A container moves
// its processes in one or two hierarchies at most, and only below its own cgroup, so any hierarchy
// of the runtime suffices.
var processHierarchies = []string{"freezer", "pids", "memory", "devices", "cpu", "name=systemd"}

// Processes returns the ids of the processes in a cgroup and its children, each once, sorted. It is
// empty if the cgroup is gone.
func (p Paths) Processes() ([]int, error) {
	for _, name := range processHierarchies {
		pids, found, err := processesIn(p.Dir(name))
		if err != nil {
			return nil, fmt.Errorf("cgroup processes: %w", err)
		}
		if found {
			slices.Sort(pids)
			return slices.Compact(pids), nil
		}
	}
	return nil, nil
}

func processesIn(path string) (pids []int, found bool, err error) {
	var children []string
	found, err = readDir(path, func(d *dir) { pids, children = d.members(), d.children() })
	for _, child := range children {
		more, _, childErr := processesIn(path + "/" + child)
		pids, err = append(pids, more...), cmp.Or(err, childErr)
	}
	return pids, found, err
}

// members returns the processes in the cgroup alone.
func (d *dir) members() []int {
	text := d.read("cgroup.procs")
	pids, err := procfs.ParseMembers(text)
	const partial = 2 << 10 // the kernel returns more than this at a time, but not always all
	if len(text) >= partial {
		pids, err = members(d.path)
	}
	d.err = cmp.Or(d.err, err)
	return pids
}

// children returns the names of the child cgroups.
func (d *dir) children() (names []string) {
	var st unix.Stat_t
	// A directory with two links has no children. It still has some fifty files to list.
	if d.err != nil || unix.Fstat(d.fd, &st) == nil && st.Nlink == 2 {
		return nil
	}
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.ReadDirent(d.fd, d.buf[:]) })
		if err != nil && !gone(err) {
			d.err = fmt.Errorf("list %s: %w", d.path, err)
		}
		if n <= 0 {
			return names
		}
		for b := d.buf[:n]; len(b) > 0; {
			length, kind := binary.NativeEndian.Uint16(b[16:]), b[18] // d_reclen and d_type, see getdents(2)
			if name := unix.ByteSliceToString(b[19:length]); kind == unix.DT_DIR && name != "." && name != ".." {
				names = append(names, name)
			}
			b = b[length:]
		}
	}
}

// members returns the processes in one cgroup; none if it is gone.
func members(dir string) ([]int, error) {
	pids, err := procfs.Members(dir)
	return pids, ignoreGone(err)
}

// ignoreGone drops the errors of a cgroup that is removed during the read. A threaded one
// (EOPNOTSUPP) lists its processes in an ancestor.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
