package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
		pids, err := processesIn(p.Dir(name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cgroup processes: %w", err)
		}
		slices.Sort(pids)
		return slices.Compact(pids), nil
	}
	return nil, nil
}

func processesIn(dir string) ([]int, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, err
	}
	pids, err := members(dir)
	// A directory with two links has no children. It still has some fifty files to list.
	if err != nil || st.Nlink == 2 {
		return pids, err
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			more, childErr := processesIn(filepath.Join(dir, e.Name()))
			pids, err = append(pids, more...), cmp.Or(err, ignoreGone(childErr))
		}
	}
	return pids, ignoreGone(err)
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
