package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// DefaultPrefix is the prefix if none is configured.
const DefaultPrefix = "berth"

// defaultSlice is the slice of pods without a cgroup_parent, as crictl may create.
const defaultSlice = "system.slice"

// Path returns a container's spec.linux.cgroupsPath below the cgroup_parent of its pod:
// "<parent>/<id>" for cgroupfs, "<slice>:<prefix>:<id>" for systemd, where the slice is the last
// element of the parent. Both are containerd's forms, by which agents find containers:
// cri-containerd-<id>.scope with systemd, the bare id with cgroupfs, where the prefix is only the
// parent of pods without one. A parent in the form of the other driver is
// errdefs.ErrInvalidArgument, because the container would not be in the pod's cgroup.
func Path(d Driver, prefix, parent, id string) (string, error) {
	if err := checkParent(parent); err != nil {
		return "", err
	}
	if d == Systemd {
		return systemdPath(prefix, parent, id)
	}
	parent = cmp.Or(parent, prefix)
	return cgroupfsPath(parent, id)
}

func checkParent(parent string) error {
	for _, element := range strings.Split(parent, "/") {
		if element == ".." || strings.ContainsAny(element, ":\x00\n") {
			return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
				"cgroup_parent %.200q: %.60q cannot be part of a cgroup's path", parent, element))
		}
	}
	return nil
}

func cgroupfsPath(parent, id string) (string, error) {
	if strings.HasSuffix(path.Base(parent), sliceSuffix) {
		return "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
			"cgroup_parent %.200q is a systemd slice, but the cgroup driver here is cgroupfs: set cgroupDriver of the kubelet and cgroup_driver of berth to the same", parent))
	}
	return path.Join("/", parent, id), nil
}

func systemdPath(prefix, parent, id string) (string, error) {
	slice := defaultSlice
	if parent != "" {
		slice = path.Base(parent)
	}
	if _, err := expandSlice(slice); err != nil {
		return "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
			"cgroup_parent %.200q: %v, but the cgroup driver here is systemd: set cgroupDriver of the kubelet and cgroup_driver of berth to the same", parent, err))
	}
	return strings.Join([]string{slice, prefix, id}, ":"), nil
}

const (
	sliceSuffix = ".slice"
	rootSlice   = "-" + sliceSuffix
)

// expandSlice returns the path of a slice in the hierarchy: a-b.slice is /a.slice/a-b.slice. See
// systemd.slice(5).
func expandSlice(slice string) (string, error) {
	name, ok := strings.CutSuffix(slice, sliceSuffix)
	if !ok || name == "" {
		return "", fmt.Errorf("%.100q is not the name of a systemd slice", slice)
	}
	if slice == rootSlice {
		return "/", nil
	}
	var b, prefix strings.Builder
	for i, part := range strings.Split(name, "-") {
		if part == "" {
			return "", fmt.Errorf("%.100q is not the name of a systemd slice", slice)
		}
		if i > 0 {
			prefix.WriteByte('-')
		}
		prefix.WriteString(part)
		b.WriteString("/" + prefix.String() + sliceSuffix)
	}
	return b.String(), nil
}

// Inside returns the path of a cgroupsPath's cgroup below the root of each hierarchy; "" for the
// root itself, or a path that Path would not return. Only a cgroupsPath of the cgroupfs driver is
// absolute.
func Inside(specPath string) string {
	if strings.HasPrefix(specPath, "/") {
		if p := path.Clean(specPath); p != "/" {
			return p
		}
		return ""
	}
	parts := strings.Split(specPath, ":")
	if len(parts) != 3 || parts[2] == "" {
		return ""
	}
	slice, err := expandSlice(parts[0])
	if err != nil {
		return ""
	}
	return path.Join(slice, unitName(parts[1], parts[2]))
}

// parentInside is Inside for a cgroup_parent.
func parentInside(parent string, d Driver) string {
	if parent == "" {
		return ""
	}
	inside := path.Clean("/" + parent)
	if d == Systemd {
		slice, err := expandSlice(path.Base(parent))
		if err != nil {
			return ""
		}
		inside = slice
	}
	if inside == "/" {
		return ""
	}
	return inside
}

// unitName returns the name that runc and crun give to the unit of a systemd cgroupsPath.
func unitName(prefix, name string) string {
	if strings.HasSuffix(name, sliceSuffix) {
		return name
	}
	if prefix == "" {
		return name + ".scope"
	}
	return prefix + "-" + name + ".scope"
}

// kataOverhead is the cgroup for what Kata does not charge to the pod, unless its
// sandbox_cgroup_only is set. Kata's Go runtime appends the pod's id to it, its Rust runtime the
// pod's path.
const kataOverhead = "/kata_overhead"

// OfPod returns the cgroups that contain a whole pod, whatever names shims give them: those with
// the pod's id in their name, next to a cgroupsPath or below kataOverhead.
func OfPod(specPath, id string) ([]Paths, error) { return host().ofPod(Inside(specPath), id) }

func (h hierarchies) ofPod(inside, id string) ([]Paths, error) {
	if inside == "" || id == "" {
		return nil, nil
	}
	var all []Paths
	for _, parent := range []string{path.Dir(inside), kataOverhead, path.Join(kataOverhead, path.Dir(inside))} {
		names, err := h.namesBelow(parent, id)
		if err != nil {
			return nil, fmt.Errorf("cgroups of a pod: %w", err)
		}
		for _, name := range names {
			all = append(all, h.paths(path.Join(parent, name)))
		}
	}
	return all, nil
}

// namesBelow returns the names of cgroups directly below parent that contain id, in any hierarchy.
func (h hierarchies) namesBelow(parent, id string) ([]string, error) {
	var names []string
	for _, dir := range h.paths(parent).directories() {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && strings.Contains(e.Name(), id) && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}
