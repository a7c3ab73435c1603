package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
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
	root := p.processDir()
	if root == "" {
		return nil, nil
	}
	var pids []int
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		if !entry.IsDir() {
			return nil
		}
		more, err := members(path)
		pids = append(pids, more...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cgroup processes: %w", err)
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

func (p Paths) processDir() string {
	if p.Unified != "" {
		return p.Unified
	}
	for _, name := range processHierarchies {
		if dir := p.Dir(name); dir != "" && exists(dir) {
			return dir
		}
	}
	return ""
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
