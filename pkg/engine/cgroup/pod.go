package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// kataOverhead is where Kata puts what it does not count for the pod, unless its
// sandbox_cgroup_only is set. Its Go runtime adds the pod's id, its Rust runtime the
// path that the pod was given.
const kataOverhead = "/kata_overhead"

// OfPod returns the cgroups that hold a pod as a whole, under whatever names shims give
// them: those beside a cgroupsPath whose name has the pod's id in it, and those
// that Kata has elsewhere.
func OfPod(specPath, id string) ([]Paths, error) { return host().ofPod(inHierarchy(specPath), id) }

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

// namesBelow are the names of cgroups right below one that have id in them, in any
// hierarchy.
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
