package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/handler"
)

var ociRuntimes = []string{"runc", "crun", "youki", "runsc"}

// gvisor is the handler of runsc, named as in RuntimeClasses. runsc is its alias.
const gvisor = "gvisor"

// ociHandlers are the handlers of ociRuntimes, in their precedence as default handler.
var ociHandlers = []string{"runc", "crun", "youki", gvisor, "runsc"}

// discoveredIn begins the Origin of a discovered handler.
const discoveredIn = "discovered in "

// Discover returns the handlers of the runtimes in dirs, sorted by name, with default settings.
// runc, crun and youki are handlers of those names; runsc is gvisor, with the alias runsc. A shim
// is named by the middle of its file name (containerd-shim-kata-v2 is kata), with the suffix
// "-shim" if that is one of the names above (containerd-shim-runc-v2 is runc-shim, even without
// runc). If a name is found twice, the earlier directory wins, and in one directory -v2 over -v1.
// Binaries that cannot be executed, or that users other than root can change, are ignored.
func Discover(dirs []string) []*handler.Definition {
	found := map[string]*handler.Definition{}
	for _, dir := range dirs {
		files, _ := hostfiles.Look("discover", dir, func() []string { return runnable(dir) })
		for _, file := range files {
			if name, ok := discoveredName(filepath.Base(file)); ok && found[name] == nil {
				found[name] = discovered(name, file)
			}
		}
	}
	if d := found[gvisor]; d != nil {
		second := *d
		second.Name, second.AliasOf = "runsc", gvisor
		found["runsc"] = &second
	}
	return sortedByName(found)
}

func runnable(dir string) []string {
	return slices.DeleteFunc(candidates(dir), func(file string) bool {
		return !filepath.IsAbs(file) || hostfiles.Inexecutable(file) != ""
	})
}

func discovered(name, file string) *handler.Definition {
	t := defaultTable()
	t.Path = file
	d := t.definition(name, Default().Engine)
	d.Origin = discoveredIn + filepath.Dir(file)
	return d
}

// candidates lists the possible runtimes in dir, preferred ones first.
func candidates(dir string) []string {
	var files []string
	for _, r := range ociRuntimes {
		files = append(files, filepath.Join(dir, r))
	}
	for _, version := range []string{"-v2", "-v1"} {
		shims, _ := filepath.Glob(filepath.Join(globEscaper.Replace(dir), shimPrefix+"*"+version))
		files = append(files, shims...)
	}
	return files
}

var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

var shimFile = regexp.MustCompile("^" + shimPrefix + "(.*)-v[12]$")

func discoveredName(base string) (string, bool) {
	if base == "runsc" {
		return gvisor, true
	}
	if slices.Contains(ociRuntimes, base) {
		return base, true
	}
	shim := shimFile.FindStringSubmatch(base)
	if shim == nil {
		return "", false
	}
	name := shim[1]
	if slices.Contains(ociHandlers, name) {
		name += "-shim"
	}
	return name, handler.ValidName(name) == nil
}

func sortedByName(byName map[string]*handler.Definition) []*handler.Definition {
	return slices.SortedFunc(maps.Values(byName), func(a, b *handler.Definition) int { return strings.Compare(a.Name, b.Name) })
}

// helperPath returns the path of one of berth's own binaries: beside the running binary, else in
// dirs, or "".
func helperPath(name string, dirs []string) string {
	path, _ := hostfiles.Look("find in "+strings.Join(dirs, ":"), name, func() string {
		if self, err := os.Executable(); err == nil {
			beside := filepath.Join(filepath.Dir(self), name)
			if hostfiles.ExecutableMistake(beside) == "" {
				return beside
			}
		}
		return hostfiles.FindIn(dirs, name)
	})
	return path
}

// Helpers returns a problem for each of berth's own binaries that was not found. Load leaves this
// check to its callers, since not all of them start pods.
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
