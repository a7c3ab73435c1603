package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/trust"
)

// executableMistake says why a path cannot be run as root on behalf of pods,
// or nothing. Symbolic links are followed.
func executableMistake(path string) string {
	if !filepath.IsAbs(path) {
		return fmt.Sprintf("%q must be an absolute path", path)
	}
	return mistake("execute", path, inexecutable)
}

func inexecutable(path string) string {
	w := trust.Find(path)
	defer w.Close()
	info, err := w.Stat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("%s does not exist; install it, or correct the path", path)
	case err != nil:
		return fmt.Sprintf("%s cannot be read: %v", path, pathless(err))
	case !info.Mode().IsRegular():
		return fmt.Sprintf("%s is %s, not a file", path, kindOf(info.Mode()))
	case info.Mode()&0o111 == 0:
		return fmt.Sprintf("%s is not executable; run chmod 0755 on it", path)
	}
	return openToOthers(w, trust.Program)
}

// Untrusted says which other users than root can change a file that is run as root, or
// nothing.
func Untrusted(path string) string {
	w := trust.Find(path)
	defer w.Close()
	return openToOthers(w, trust.Program)
}

// openToOthers says who else than root can change a file, or nothing.
func openToOthers(w *trust.Way, p trust.Purpose) string {
	if err := w.Judge(p); err != nil {
		return err.Error()
	}
	return ""
}

func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m.IsRegular():
		return "a file"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a special file"
}

// pathless drops the path that the caller names anyway.
func pathless(err error) error {
	var e *fs.PathError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// helperPath finds a binary of berth's own: beside the running one, else where
// runtimes are discovered. It returns "" if there is none.
func helperPath(name string, dirs []string) string {
	path, _ := look("find in "+strings.Join(dirs, ":"), name, func() string { return findHelper(name, dirs) })
	return path
}

func findHelper(name string, dirs []string) string {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if executableMistake(beside) == "" {
			return beside
		}
	}
	return FindIn(dirs, name)
}

// FindIn finds the program of that name in directories, by default SearchDirs; empty is none.
func FindIn(dirs []string, program string) string {
	dirs = Options{SearchPath: dirs}.searchPath()
	for _, dir := range dirs {
		if file := filepath.Join(dir, filepath.Base(program)); executableMistake(file) == "" {
			return file
		}
	}
	return ""
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

// maxReason bounds Broken.Reason, which is part of what a CRI client reads.
const maxReason = 512

func clip(reason string) string { return printable.Clip(reason, maxReason) }
