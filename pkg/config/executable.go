package config

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
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
	info, err := os.Stat(path)
	switch {
	case os.IsNotExist(err):
		return fmt.Sprintf("%s does not exist; install it, or correct the path", path)
	case err != nil:
		return fmt.Sprintf("%s cannot be looked at: %v", path, pathless(err))
	case !info.Mode().IsRegular():
		return fmt.Sprintf("%s is no file but %s", path, kindOf(info.Mode()))
	case info.Mode()&0o111 == 0:
		return fmt.Sprintf("%s is not executable; run chmod 0755 on it", path)
	case info.Mode()&0o002 != 0:
		return fmt.Sprintf("%s can be changed by every user (mode %04o) and would be run as root; run chmod o-w on it",
			path, info.Mode().Perm())
	}
	return replaceable(path)
}

// replaceable says who else than root can put another file in the place of one
// that is run as root, or nothing.
func replaceable(path string) string {
	return openAbove(path, "which would be run as root", "who could change what is run as root")
}

func openAbove(path, placed, owned string) string {
	for dir, info := range upwards(path) {
		if m := openToOthers(dir, info, trusted(), placed, owned); m != "" {
			return m
		}
	}
	return ""
}

// changeable says who else than root can change a file that berth trusts, or put
// another one in its place, or nothing. What is missing is not its concern.
func changeable(path string) string {
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() && info.Mode()&0o002 != 0 {
		return fmt.Sprintf("can be changed by every user (mode %04o), and berth would trust it; run chmod o-w %s", info.Mode().Perm(), path)
	}
	return openAbove(path, "which berth would trust", "who could change what berth trusts")
}

// upwards yields a file and all directories above it, and the same of what it is a
// link to.
func upwards(path string) iter.Seq2[string, fs.FileInfo] {
	return func(yield func(string, fs.FileInfo) bool) {
		files := []string{path}
		if target, err := filepath.EvalSymlinks(path); err == nil && target != path {
			files = append(files, target)
		}
		for _, file := range files {
			for {
				if info, err := os.Stat(file); err == nil && !yield(file, info) {
					return
				}
				if file == filepath.Dir(file) {
					break
				}
				file = filepath.Dir(file)
			}
		}
	}
}

// trusted are the users who may own what is run as root: root, whoever runs this,
// and those who could put another berth in the place of this one.
var trusted = sync.OnceValue(func() map[uint32]bool {
	users := map[uint32]bool{0: true, uint32(os.Geteuid()): true} //nolint:gosec // a uid has 32 bits
	self, err := os.Executable()
	if err != nil {
		return users
	}
	for _, info := range upwards(self) {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			users[st.Uid] = true
		}
	}
	return users
})

// openToOthers is about one file or directory of a path. In a sticky directory
// nobody can replace what is another's.
func openToOthers(file string, info fs.FileInfo, trusted map[uint32]bool, placed, owned string) string {
	if info.IsDir() && info.Mode()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Sprintf("every user can put another file into %s (mode %04o), %s; run chmod o-w on it", file, info.Mode().Perm(), placed)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && !trusted[st.Uid] {
		return fmt.Sprintf("%s belongs to user %d, %s; run chown root on it", file, st.Uid, owned)
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

// helperPath finds a binary of berth's own: beside the running one, else in
// PATH. It returns "" if there is none.
func helperPath(name string) string {
	path, _ := look("find", name, func() string { return findHelper(name) })
	return path
}

func findHelper(name string) string {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if executableMistake(beside) == "" {
			return beside
		}
	}
	found, err := exec.LookPath(name)
	if err != nil || executableMistake(found) != "" {
		return ""
	}
	return found
}

// Helpers returns Problems if a binary of berth's own that this configuration
// needs was not found. Load leaves that to its callers, since not all of them
// start pods.
func (c *Config) Helpers() error {
	var problems Problems
	for _, h := range []struct{ key, name, path string }{
		{"engine.shim_path", "berth-shim", c.Engine.ShimPath},
		{"engine.pause_path", "berth-pause", c.Engine.PausePath},
	} {
		if h.path == "" {
			problems = append(problems, Problem{Key: h.key, Message: h.name +
				" is neither beside the berth binary nor in PATH; install it, or set this key to its absolute path"})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return problems
}
