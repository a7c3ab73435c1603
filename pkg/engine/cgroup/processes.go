package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	hasChildren := false
	found, err = readDir(path, func(d *dir) { pids, hasChildren = d.members(), d.hasChildren() })
	if err != nil || !hasChildren {
		return pids, found, err
	}
	entries, err := os.ReadDir(path)
	err = ignoreGone(err)
	for _, e := range entries {
		if e.IsDir() {
			more, _, childErr := processesIn(path + "/" + e.Name())
			pids, err = append(pids, more...), cmp.Or(err, childErr)
		}
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

// hasChildren reports whether the cgroup may have child cgroups: a directory with two links has none.
// It still has some fifty files to list.
func (d *dir) hasChildren() bool {
	var st unix.Stat_t
	return unix.Fstat(d.fd, &st) != nil || st.Nlink != 2
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
