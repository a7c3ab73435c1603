// Package nodefs accesses a node's files below a mounted root directory, by their paths on the
// node.
package nodefs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Root is the path at which the root directory of a node is mounted.
type Root string

// Path returns the path at which this process finds a path of the node. Links in its directories,
// such as /var/run, are followed as on the node; a link at its end is not.
func (r Root) Path(path string) string {
	return filepath.Join(r.Resolved(filepath.Dir(path)), filepath.Base(path))
}

// Resolved is Path with all links followed.
func (r Root) Resolved(path string) string {
	there, err := securejoin.SecureJoin(string(r), path)
	if err != nil {
		return filepath.Join(string(r), path) // the use of this path fails with the same error
	}
	return there
}

// Seen resolves the links of a path below the root as on the node, and returns others unchanged.
func (r Root) Seen(path string) string {
	if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(string(r), "/")+"/"); ok {
		return r.Resolved(rest)
	}
	return path
}

// ExistsAny reports whether one of the paths exists.
func (r Root) ExistsAny(paths ...string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		_, err := os.Lstat(r.Path(path))
		return err == nil
	})
}

// Matching returns the paths of the node that match a pattern.
func (r Root) Matching(patterns []string) []string {
	var found []string
	for _, p := range patterns {
		paths, _ := filepath.Glob(r.Path(p)) // the patterns are constants
		for _, path := range paths {
			if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(string(r), "/")); ok {
				found = append(found, rest)
			}
		}
	}
	return found
}

// UnitPaths returns the possible paths of a service's unit.
func UnitPaths(name string) []string {
	var paths []string
	for _, dir := range []string{"/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"} {
		paths = append(paths, filepath.Join(dir, name+".service"))
	}
	return paths
}
