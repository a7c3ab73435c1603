package hostfiles

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/trust"
)

// ExecutableMistake returns why a path cannot be executed as root on behalf of pods, or "". It
// follows symbolic links.
func ExecutableMistake(path string) string {
	if !filepath.IsAbs(path) {
		return fmt.Sprintf("%q must be an absolute path", path)
	}
	return Mistake("execute", path, Inexecutable)
}

// Inexecutable returns why a path is not a program that root alone can change, or "". It may block;
// ExecutableMistake bounds the wait.
func Inexecutable(path string) string { return unusable(path, trust.Program) }

// unusable returns why a file cannot be used for p, or "".
func unusable(path string, p trust.Purpose) string {
	w := trust.Find(path)
	defer w.Close()
	info, err := w.Stat()
	switch {
	case errors.Is(err, fs.ErrNotExist) && p == trust.Program:
		return fmt.Sprintf("%s does not exist; install it, or correct the path", path)
	case errors.Is(err, fs.ErrNotExist):
		return path + " does not exist"
	case err != nil:
		return fmt.Sprintf("%s cannot be read: %v", path, pathless(err))
	case !info.Mode().IsRegular():
		return fmt.Sprintf("%s is %s, not a file", path, kindOf(info.Mode()))
	case p == trust.Program && info.Mode()&0o111 == 0:
		return fmt.Sprintf("%s is not executable; run chmod 0755 on it", path)
	}
	return openToOthers(w, p)
}

// Untrusted returns which users other than root can change a program that is run as root, or "".
func Untrusted(path string) string {
	w := trust.Find(path)
	defer w.Close()
	return openToOthers(w, trust.Program)
}

func openToOthers(w *trust.File, p trust.Purpose) string {
	if err := w.Check(p); err != nil {
		return err.Error()
	}
	return ""
}

var kinds = map[fs.FileMode]string{
	0:                                 "a file",
	fs.ModeDir:                        "a directory",
	fs.ModeDevice:                     "a device",
	fs.ModeDevice | fs.ModeCharDevice: "a device",
	fs.ModeNamedPipe:                  "a named pipe",
	fs.ModeSocket:                     "a socket",
}

func kindOf(m fs.FileMode) string { return cmp.Or(kinds[m.Type()], "a special file") }

// pathless drops the path from an error for callers that print it themselves.
func pathless(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// FindIn returns the path of a program in dirs, by default SearchDirs, or "".
func FindIn(dirs []string, program string) string {
	if len(dirs) == 0 {
		dirs = SearchDirs()
	}
	for _, dir := range dirs {
		if file := filepath.Join(dir, filepath.Base(program)); ExecutableMistake(file) == "" {
			return file
		}
	}
	return ""
}

// MaxReason bounds the reason why a handler cannot be used, in bytes: CRI clients read it.
const MaxReason = 512
