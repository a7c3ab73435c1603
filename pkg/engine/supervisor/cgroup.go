package supervisor

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

// hierarchy is a mounted cgroup hierarchy.
type hierarchy struct {
	controller string // empty for version 2
	mount      string
	root       string // what of the hierarchy is mounted there
}

// hierarchies are those that matter here.
func hierarchies() ([]hierarchy, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2", false
	})
	if err != nil {
		return nil, fmt.Errorf("find the cgroup mounts: %w", err)
	}
	return hierarchiesOf(mounts), nil
}

// hierarchiesOf chooses where each hierarchy is mounted for good: first, in the order of
// mountinfo. Containers and CRIU mount them elsewhere for a while. Pure.
func hierarchiesOf(mounts []*mountinfo.Info) []hierarchy {
	var found []hierarchy
	add := func(h hierarchy) {
		if !slices.ContainsFunc(found, func(o hierarchy) bool { return o.controller == h.controller }) {
			found = append(found, h)
		}
	}
	for _, m := range mounts {
		if strings.Contains(m.Mountpoint, "/"+criuYard) {
			continue
		}
		if m.FSType == "cgroup2" {
			add(hierarchy{mount: m.Mountpoint, root: m.Root})
			continue
		}
		for option := range strings.SplitSeq(m.VFSOptions, ",") {
			switch option {
			case "memory", "freezer", "pids":
				add(hierarchy{controller: option, mount: m.Mountpoint, root: m.Root})
			}
		}
	}
	return found
}

// cgroupAt is the cgroup of a path, as far as it is there.
func cgroupAt(all []hierarchy, where string) Cgroup {
	if where == "" || where == "/" {
		return Cgroup{}
	}
	at := map[string]string{}
	for _, h := range all {
		at[h.controller] = where
	}
	return locateCgroup(all, nil, at, where)
}

// locateCgroup says where a container's processes are. They have a cgroup of
// their own where that differs from ours. A process that has exited already is
// in no cgroup of version 1 any more; then what the spec asked for is taken,
// where that exists.
func locateCgroup(all []hierarchy, own, container map[string]string, asked string) Cgroup {
	var c Cgroup
	for _, h := range all {
		where := container[h.controller]
		if (where == "" || where == "/" || where == own[h.controller]) && h.controller != "" {
			where = asked
		}
		if where == "" || where == "/" || where == own[h.controller] {
			continue
		}
		dir := h.dir(where)
		if dir == "" {
			continue
		}
		switch h.controller {
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

// dir is the directory of a cgroup, or empty when it is not there.
func (h hierarchy) dir(where string) string {
	rel, err := filepath.Rel(h.root, where)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return ""
	}
	dir := filepath.Join(h.mount, rel)
	if _, err := os.Stat(dir); err != nil || dir == h.mount {
		return ""
	}
	return dir
}

func askedCgroup(cgroupsPath, id string, systemd bool) string {
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

// slicePath is where systemd puts a slice: a-b.slice is in a.slice.
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

// oomFile is the file that counts out-of-memory kills, or empty.
func (c Cgroup) oomFile() string {
	switch {
	case c.Memory != "":
		return filepath.Join(c.Memory, "memory.oom_control")
	case c.Unified != "":
		return filepath.Join(c.Unified, "memory.events")
	}
	return ""
}

// parseCounter reads a line "<key> <number>".
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

// main is the directory whose processes are the container's, or empty.
func (c Cgroup) main() string {
	for _, dir := range []string{c.Pids, c.Freezer, c.Memory, c.Unified} {
		if dir != "" {
			return dir
		}
	}
	return ""
}

// processIDs lists the container's processes, those in cgroups below its own
// included.
func (c Cgroup) processIDs() ([]int, error) {
	dir := c.main()
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

// ignoreNotExist drops errors of cgroups that vanish while they are read; a threaded
// one shows its processes further up.
func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// signal sends a signal to every process of the container once.
func (c Cgroup) signal(sig unix.Signal) (sent int, err error) {
	pids, err := c.processIDs()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		if pid == os.Getpid() || pid == 1 {
			return sent, fmt.Errorf("cgroup %s contains process %d, which is not a container process: %w", c.main(), pid, errdefs.ErrInternal)
		}
	}
	for _, pid := range pids {
		if unix.Kill(pid, sig) == nil {
			sent++
		}
	}
	return sent, nil
}

// emptyTimeout is how long killed processes may take to be gone.
const emptyTimeout = 2 * time.Second

// kill kills every process of the container, those included that are forked
// meanwhile, also when it is frozen.
func (c Cgroup) kill() error {
	if c.Memory == "" && c.Pids == "" && c.Unified != "" {
		err := os.WriteFile(filepath.Join(c.Unified, "cgroup.kill"), []byte("1"), 0)
		if err == nil || errors.Is(err, unix.ENODEV) {
			return nil
		}
		// Kernels before 5.14 have no such file.
	}
	for deadline := time.Now().Add(emptyTimeout); ; time.Sleep(time.Millisecond) {
		sent, err := c.signal(unix.SIGKILL)
		c.thaw()
		if err != nil || sent == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of the container survived SIGKILL: %w", sent, context.DeadlineExceeded)
		}
	}
}

// thaw lets a frozen container run, without which one of cgroup version 1 cannot die, and
// runtimes delete none.
func (c Cgroup) thaw() {
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
