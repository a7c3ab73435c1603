// Package cgroups finds the cgroups of a container, kills and thaws their processes, and counts the
// kernel's out-of-memory kills there.
package cgroups

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// criuYard is the prefix of directories in which CRIU temporarily mounts all cgroups.
const criuYard = ".criu.cgyard."

// Hierarchy is a mounted cgroup hierarchy.
type Hierarchy struct {
	Controller string // empty for version 2
	Mount      string
	root       string // the cgroup that is mounted there
}

// Hierarchies returns the hierarchies that a supervisor uses.
func Hierarchies() ([]Hierarchy, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2", false
	})
	if err != nil {
		return nil, fmt.Errorf("find the cgroup mounts: %w", err)
	}
	return hierarchiesOf(mounts), nil
}

// hierarchiesOf selects the permanent mount of each hierarchy, the first in mountinfo. Containers
// and CRIU mount hierarchies elsewhere temporarily. Pure.
func hierarchiesOf(mounts []*mountinfo.Info) []Hierarchy {
	var found []Hierarchy
	add := func(h Hierarchy) {
		if !slices.ContainsFunc(found, func(o Hierarchy) bool { return o.Controller == h.Controller }) {
			found = append(found, h)
		}
	}
	for _, m := range mounts {
		if strings.Contains(m.Mountpoint, "/"+criuYard) {
			continue
		}
		if m.FSType == "cgroup2" {
			add(Hierarchy{Mount: m.Mountpoint, root: m.Root})
			continue
		}
		for option := range strings.SplitSeq(m.VFSOptions, ",") {
			switch option {
			case "memory", "freezer", "pids":
				add(Hierarchy{Controller: option, Mount: m.Mountpoint, root: m.Root})
			}
		}
	}
	return found
}

// At returns the existing cgroups with a path, at most one for each hierarchy.
func At(all []Hierarchy, where string) Cgroup {
	if where == "" || where == "/" {
		return Cgroup{}
	}
	at := map[string]string{}
	for _, h := range all {
		at[h.Controller] = where
	}
	return locateCgroup(all, nil, at, where)
}

// locateCgroup returns the cgroups of a container's processes. Only a cgroup that differs from the
// supervisor's is the container's own. An exited process is in no cgroup of version 1 any more; its
// cgroups are those of the spec, if they exist.
func locateCgroup(all []Hierarchy, own, container map[string]string, asked string) Cgroup {
	var c Cgroup
	for _, h := range all {
		where := container[h.Controller]
		if (where == "" || where == "/" || where == own[h.Controller]) && h.Controller != "" {
			where = asked
		}
		if where == "" || where == "/" || where == own[h.Controller] {
			continue
		}
		dir := h.dir(where)
		if dir == "" {
			continue
		}
		switch h.Controller {
		case "":
			c.Unified = dir
		case "memory":
			c.Memory = dir
		case "freezer":
			c.Freezer = dir
		case "pids":
			c.Pids = dir
		}
	}
	return c
}

// dir returns the directory of a cgroup, or "" if it does not exist.
func (h Hierarchy) dir(where string) string {
	rel, err := filepath.Rel(h.root, where)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return ""
	}
	dir := filepath.Join(h.Mount, rel)
	if _, err := os.Stat(dir); err != nil || dir == h.Mount {
		return ""
	}
	return dir
}

// Asked returns the path of the cgroup in a spec's linux.cgroupsPath (OCI runtime spec), as
// runtimes interpret it; "" if it is malformed.
func Asked(cgroupsPath, id string, systemd bool) string {
	if !systemd {
		if cgroupsPath == "" {
			return "/" + id
		}
		return path.Clean("/" + cgroupsPath)
	}
	parts := strings.SplitN(cgroupsPath, ":", 3)
	if len(parts) != 3 {
		return ""
	}
	unit := parts[2]
	if !strings.HasSuffix(unit, ".slice") {
		unit = parts[1] + "-" + parts[2] + ".scope"
	}
	return path.Join(slicePath(parts[0]), unit)
}

// slicePath returns the path of a systemd slice: a-b.slice is in a.slice.
func slicePath(slice string) string {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || name == "-" {
		return "/"
	}
	where, prefix := "/", ""
	for part := range strings.SplitSeq(name, "-") {
		where = path.Join(where, prefix+part+".slice")
		prefix += part + "-"
	}
	return where
}

// oomFile returns the file that counts out-of-memory kills, or "".
func (c Cgroup) oomFile() string {
	switch {
	case c.Memory != "":
		return filepath.Join(c.Memory, "memory.oom_control")
	case c.Unified != "":
		return filepath.Join(c.Unified, "memory.events")
	}
	return ""
}

// parseCounter returns the number in the line "<key> <number>", or 0.
func parseCounter(b []byte, key string) uint64 {
	for line := range bytes.Lines(b) {
		name, value, ok := bytes.Cut(bytes.TrimSpace(line), []byte{' '})
		if ok && string(name) == key {
			n, _ := strconv.ParseUint(string(value), 10, 64)
			return n
		}
	}
	return 0
}

// Main returns the directory that lists the container's processes, or "".
func (c Cgroup) Main() string {
	for _, dir := range []string{c.Pids, c.Freezer, c.Memory, c.Unified} {
		if dir != "" {
			return dir
		}
	}
	return ""
}

// ProcessIDs lists the container's processes, including those in child cgroups.
func (c Cgroup) ProcessIDs() ([]int, error) {
	dir := c.Main()
	if dir == "" {
		return nil, fmt.Errorf("the container has no cgroup of its own: %w", errdefs.ErrFailedPrecondition)
	}
	var pids []int
	err := filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return ignoreNotExist(err)
		}
		more, err := procfs.Members(at)
		pids = append(pids, more...)
		return ignoreNotExist(err)
	})
	return pids, err
}

// ignoreNotExist drops errors of cgroups that vanish while they are read, and of threaded cgroups:
// their parents list the processes.
func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// Signal sends a signal to every process of the container once.
func (c Cgroup) Signal(sig unix.Signal) (sent int, err error) {
	pids, err := c.ProcessIDs()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if pid == os.Getpid() || pid == 1 {
			return sent, fmt.Errorf("cgroup %s contains process %d, which is not a container process: %w", c.Main(), pid, errdefs.ErrInternal)
		}
	}
	for _, pid := range pids {
		if unix.Kill(pid, sig) == nil {
			sent++
		}
	}
	return sent, nil
}

// emptyTimeout is how long killed processes may take to exit.
const emptyTimeout = 2 * time.Second

// Kill kills every process of the container, including processes that are forked meanwhile, even if
// the container is frozen.
func (c Cgroup) Kill() error {
	if c.Memory == "" && c.Pids == "" && c.Unified != "" {
		err := os.WriteFile(filepath.Join(c.Unified, "cgroup.kill"), []byte("1"), 0)
		if err == nil || errors.Is(err, unix.ENODEV) {
			return nil
		}
		// Kernels before 5.14 have no such file.
	}
	for deadline := time.Now().Add(emptyTimeout); ; time.Sleep(time.Millisecond) {
		sent, err := c.Signal(unix.SIGKILL)
		c.Thaw()
		if err != nil || sent == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of the container survived SIGKILL: %w", sent, context.DeadlineExceeded)
		}
	}
}

// Thaw resumes a frozen container. Processes in a frozen cgroup of version 1 cannot exit, and
// runtimes do not delete a frozen container.
func (c Cgroup) Thaw() {
	var file, thawed string
	switch {
	case c.Freezer != "":
		file, thawed = filepath.Join(c.Freezer, "freezer.state"), "THAWED"
	case c.Unified != "":
		file, thawed = filepath.Join(c.Unified, "cgroup.freeze"), "0"
	default:
		return
	}
	if state, err := os.ReadFile(file); err == nil && !strings.HasPrefix(string(state), thawed) {
		_ = os.WriteFile(file, []byte(thawed), 0)
	}
}

// Cgroup is the part of a container's cgroups that a supervisor needs. The paths are directories;
// empty if the container has none of its own.
type Cgroup struct {
	// Unified is the cgroup of version 2.
	Unified string `json:"unified,omitempty"`
	// Memory, Freezer and Pids are those of version 1.
	Memory  string `json:"memory,omitempty"`
	Freezer string `json:"freezer,omitempty"`
	Pids    string `json:"pids,omitempty"`
}

// Of returns the cgroups of a container's processes.
func Of(all []Hierarchy, pid int, asked string) Cgroup {
	own, errOwn := procfs.CgroupsOf(os.Getpid())
	container, err := procfs.CgroupsOf(pid)
	if err := errors.Join(errOwn, err); err != nil {
		return Cgroup{}
	}
	return locateCgroup(all, own, container, asked)
}
