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

// errNoDirectory means that no worker of Node Feature Discovery reads files on this node.
var errNoDirectory = errors.New("the directory of the file does not exist")

// file is replaced as a whole, so that readers never see a part of it. Only overwrite is in place.
type file struct{ path string }

// read returns the file's text; "" if the file does not exist or is not a regular one.
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

// write replaces the file. The new file is created beside the directory: creating it inside would
// wake the worker, which would read the old content and then miss the rename. If that fails,
// because of another file system or missing permission, it is created inside under a name that the
// worker does not read; then seen is true.
func (f file) write(text string) (seen bool, err error) {
	dir, name := filepath.Split(filepath.Clean(f.path))
	dir, name = filepath.Clean(dir), "."+name+".new"
	if f.replace(filepath.Join(filepath.Dir(dir), name), text) == nil {
		return false, nil
	}
	return true, f.replace(filepath.Join(dir, name), text)
}

// replace makes the file readable for all users: the worker does not run as root.
func (f file) replace(temporary, text string) error {
	return atomicfile.WriteBy(temporary, f.path, 0o644, atomicfile.Relaxed, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// overwrite replaces the text, of size bytes, in place, since the disk may have no room for a new
// file. The remainder becomes a comment.
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
