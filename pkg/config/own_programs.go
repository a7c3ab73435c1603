package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// helperPath finds a binary of berth's own: beside the running one, else where
// runtimes are discovered. It returns "" if there is none.
func helperPath(name string, dirs []string) string {
	path, _ := hostfiles.Look("find in "+strings.Join(dirs, ":"), name, func() string { return findHelper(name, dirs) })
	return path
}

func findHelper(name string, dirs []string) string {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if hostfiles.ExecutableMistake(beside) == "" {
			return beside
		}
	}
	return hostfiles.FindIn(dirs, name)
}

// Helpers returns a problem for each binary of berth's own that this configuration
// needs and that was not found. Load leaves that to its callers, since not all of them
// start pods.
func (c *Config) Helpers() (problems Problems) {
	for _, h := range []struct{ key, name, path string }{
		{"engine.shim_path", "berth-shim", c.Engine.ShimPath},
		{"engine.pause_path", "berth-pause", c.Engine.PausePath},
	} {
		if h.path == "" {
			problems = append(problems, Problem{Key: h.key, Message: h.name +
				" was not found beside the berth binary or in " + shortList(Options{SearchPath: c.SearchPath}.searchPath()) + "; install it, or set this key to its absolute path"})
		}
	}
	return problems
}

func shortList(dirs []string) string {
	const enough = 6
	if len(dirs) <= enough {
		return strings.Join(dirs, ", ")
	}
	return fmt.Sprintf("%s and %d more directories", strings.Join(dirs[:enough], ", "), len(dirs)-enough)
}
