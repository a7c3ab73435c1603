package featurefile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// errNoDirectory says that there is none for the file, and so nobody who reads it.
var errNoDirectory = errors.New("the directory of the file does not exist")

// file is at a path, and is only ever there as a whole.
type file struct{ path string }

// read returns what is in the file; nothing if there is none, or none of Keepers.
func (f file) read() (string, error) {
	opened, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(f.path)); errors.Is(err, fs.ErrNotExist) {
			return "", errNoDirectory
		}
		return "", nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO): // a link; a socket
		return "", nil
	case err != nil:
		return "", err
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", nil
	}
	text, err := io.ReadAll(io.LimitReader(opened, largest+1))
	return string(text), err
}

// write puts a text in the place of what is there. The new file is made beside the
// directory: one that comes into it makes the worker look, which then sees what was
// there before and passes over the change itself. Where that cannot be, for it is
// another file system or nobody may write there, it is made in it, under a name that
// is not read; seen says so.
func (f file) write(text string) (seen bool, err error) {
	dir, name := filepath.Split(filepath.Clean(f.path))
	dir, name = filepath.Clean(dir), "."+name+".new"
	if f.replace(filepath.Join(filepath.Dir(dir), name), text) == nil {
		return false, nil
	}
	return true, f.replace(filepath.Join(dir, name), text)
}

// replace lets everybody read the file: the worker is no root.
func (f file) replace(temporary, text string) error {
	return atomicfile.WriteBy(temporary, f.path, 0o644, atomicfile.Relaxed, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// overwrite puts a text in the place of one of that size, on a disk that has no room for
// a new file. A comment hides the rest.
func (f file) overwrite(text string, size int) error {
	if len(text) > size {
		return errors.New("the text does not fit")
	}
	opened, err := os.OpenFile(f.path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = opened.WriteAt([]byte(text+strings.Repeat("#", size-len(text))), 0)
	return errors.Join(err, opened.Close())
}
