package cgroup

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
)

// hierarchies are the mount points of the host's cgroups.
type hierarchies struct {
	// unified is the mount of cgroup v2 on a host without cgroup v1, else empty.
	unified string
	// v1 are the mounts of cgroup v1 by controller. Named hierarchies have keys such as
	// name=systemd; the v2 mount of a hybrid host has the key unifiedName.
	v1 map[string]string
}

// unifiedName is the key of a hybrid host's v2 mount.
const unifiedName = "unified"

// host is read once: hierarchies are mounted when a node boots.
var host = sync.OnceValue(func() hierarchies {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return hierarchies{}
	}
	defer f.Close()
	return parseMounts(f)
})

// parseMounts reads mountinfo. Of several mounts of a hierarchy it uses the first. It ignores
// mounts of only a part (bind mounts).
func parseMounts(r io.Reader) hierarchies {
	h := hierarchies{v1: map[string]string{}}
	// An error means a line that no kernel writes.
	mounts, _ := mountinfo.GetMountsFromReader(r, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	for _, m := range mounts {
		if m.Root != "/" {
			continue
		}
		for _, name := range namesOf(m) {
			if _, ok := h.v1[name]; !ok {
				h.v1[name] = m.Mountpoint
			}
		}
	}
	if len(h.v1) == 1 && h.v1[unifiedName] != "" {
		return hierarchies{unified: h.v1[unifiedName]}
	}
	return h
}

// namesOf returns the controllers of a mount, which are among its options.
func namesOf(m *mountinfo.Info) []string {
	if m.FSType == "cgroup2" {
		return []string{unifiedName}
	}
	var out []string
	for _, option := range strings.Split(m.VFSOptions, ",") {
		switch {
		case slices.Contains([]string{"rw", "ro", "xattr", "noprefix", "clone_children", "cpuset_v2_mode", "favordynmods"}, option):
		case strings.HasPrefix(option, "release_agent="):
		default:
			out = append(out, option)
		}
	}
	return out
}

// Paths are the directories of one cgroup. The zero value is no cgroup, which every method treats
// as one that is gone.
type Paths struct {
	// Unified is the directory on a host with cgroup v2 alone, and otherwise empty.
	Unified string
	// V1 are the mounts of cgroup v1 or of a hybrid host, by controller, and inside is the
	// cgroup's path below each of them.
	V1     map[string]string
	inside string
}

// Dir returns the directory of a controller, or "" if the host does not have it.
func (p Paths) Dir(controller string) string {
	if p.Unified != "" {
		return p.Unified
	}
	mount, mounted := p.V1[controller]
	if !mounted {
		return ""
	}
	return mount + p.inside
}

// HostPaths returns the directories of a cgroupsPath, whether or not they exist. A path that Path
// would not return gives the zero value.
func HostPaths(specPath string) Paths {
	return host().paths(Inside(specPath))
}

// KernelPath is the name of the cgroup of a cgroupsPath in the kernel's log. It is empty unless the
// host has only cgroup v2.
func KernelPath(specPath string) string {
	if host().unified == "" {
		return ""
	}
	return Inside(specPath)
}

// ParentPaths returns the directories of a pod's cgroup_parent, which the kubelet creates. A pod
// without one has the zero value.
func ParentPaths(parent string, d Driver) Paths {
	return host().paths(parentInside(parent, d))
}

func (h hierarchies) paths(inside string) Paths {
	if inside == "" {
		return Paths{}
	}
	return Paths{Unified: h.unified, V1: h.v1}.below(inside)
}

// below returns a cgroup in p, for an absolute, clean path.
func (p Paths) below(inside string) Paths {
	if p.Unified != "" {
		return Paths{Unified: p.Unified + inside}
	}
	return Paths{V1: p.V1, inside: p.inside + inside}
}

// Exists reports whether the cgroup exists in any hierarchy.
func (p Paths) Exists() bool {
	for _, dir := range p.directories() {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// directories returns all directories, each once.
func (p Paths) directories() []string {
	if p.Unified != "" {
		return []string{p.Unified}
	}
	var out []string
	for _, mount := range p.V1 {
		if dir := path.Clean(mount + p.inside); !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	slices.Sort(out)
	return out
}
