package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// processHierarchies are those of v1 to look for processes in, best first: what
// a container moves its processes to, it moves in one or two of them, and below
// its own cgroup, so any will do that the runtime made.
var processHierarchies = []string{"freezer", "pids", "memory", "devices", "cpu", "name=systemd"}

// Processes returns the ids of the processes in a cgroup and its children, each
// once, sorted. It is empty for a cgroup that is gone.
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
		more, err := readPids(filepath.Join(path, "cgroup.procs"))
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
		if dir, ok := p.V1[name]; ok && exists(dir) {
			return dir
		}
	}
	return ""
}

func readPids(file string) ([]int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, ignoreGone(err)
	}
	var pids []int
	for _, word := range strings.Fields(string(b)) {
		pid, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		// 0 is a process of another PID namespace than ours: not ours to name.
		if pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// ignoreGone drops the errors of a cgroup that is removed while it is read; a
// threaded one (EOPNOTSUPP) shows its processes further up.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}
