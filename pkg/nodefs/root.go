// Package nodefs has files of a node whose root directory is mounted somewhere, by the paths
// that they have on the node.
package nodefs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Root is where the root directory of a node is.
type Root string

// Path is where a path of the node is. Symbolic links above it, as /var/run is one, lead
// to where the node has them lead; what is there may be one itself.
func (r Root) Path(path string) string {
	return filepath.Join(r.Resolved(filepath.Dir(path)), filepath.Base(path))
}

// Resolved is where a path of the node is when all links are followed.
func (r Root) Resolved(path string) string {
	there, err := securejoin.SecureJoin(string(r), path)
	if err != nil {
		return filepath.Join(string(r), path) // its use meets the same error
	}
	return there
}

// Seen is where a path of this process is. One of the node has the node's links.
func (r Root) Seen(path string) string {
	if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(string(r), "/")+"/"); ok {
		return r.Resolved(rest)
	}
	return path
}

// ExistsAny returns whether one of some paths is there.
func (r Root) ExistsAny(paths ...string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		_, err := os.Lstat(r.Path(path))
		return err == nil
	})
}

// Matching are the files of the node that patterns match.
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

// UnitPaths is where the unit of a service may be.
func UnitPaths(name string) []string {
	var paths []string
	for _, dir := range []string{"/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"} {
		paths = append(paths, filepath.Join(dir, name+".service"))
	}
	return paths
}
