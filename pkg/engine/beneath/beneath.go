// Package beneath opens files in directories that pods or their authors can write to, such as a
// pod's log directory. The directory itself is trusted, and its path may contain symbolic links;
// below it no link is followed, and only regular files with one name are opened.
//
// Each step starts from the handle of the step before, so that a concurrent rename or replacement
// cannot redirect it.
package beneath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// attempts limits the tries to open a file that is repeatedly created and removed.
const attempts = 100

// Split cuts an absolute path into a trusted directory and the rest. An empty directory means the
// path's own.
func Split(dir, path string) (root, name string, err error) {
	if !filepath.IsAbs(path) {
		return "", "", fmt.Errorf("path %q is not absolute: %w", path, errdefs.ErrInvalidArgument)
	}
	if dir == "" {
		return filepath.Dir(path), filepath.Base(path), nil
	}
	name, err = filepath.Rel(dir, path)
	if err != nil || !filepath.IsLocal(name) || name == "." {
		return "", "", fmt.Errorf("path %q is not below %q: %w", path, dir, errdefs.ErrInvalidArgument)
	}
	return dir, name, nil
}

// MakeParents creates the directories between root, which exists, and name.
func MakeParents(root, name string, mode uint32) error {
	dir, err := parent(root, name, func(at int, step string) error {
		if err := unix.Mkdirat(at, step, mode); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	return dir.Close()
}

// Append opens the file for reading and appending, and creates it, but not its directory, if it
// does not exist.
func Append(root, name string, mode uint32) (*os.File, error) {
	return openIn(root, name, unix.O_RDWR|unix.O_APPEND, true, mode)
}

// Read opens the file for reading.
func Read(root, name string) (*os.File, error) {
	return openIn(root, name, unix.O_RDONLY, false, 0)
}

func openIn(root, name string, flags int, create bool, mode uint32) (*os.File, error) {
	dir, err := parent(root, name, nil)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path, base := filepath.Join(root, name), filepath.Base(name)
	at := int(dir.Fd())
	for range attempts {
		fd, err := openExisting(at, base, flags)
		if errors.Is(err, unix.ENOENT) && create {
			fd, err = unix.Openat(at, base, flags|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
			if errors.Is(err, unix.EEXIST) {
				continue // it was created meanwhile
			}
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
	return nil, fmt.Errorf("open %s: it is repeatedly created and removed: %w", path, errdefs.ErrUnavailable)
}

// openExisting checks a file before it opens it: opening a FIFO may block forever, and opening a
// device may have effects.
func openExisting(at int, base string, flags int) (int, error) {
	handle, err := unix.Openat(at, base, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(handle)
	var st unix.Stat_t
	if err := unix.Fstat(handle, &st); err != nil {
		return -1, err
	}
	if st.Nlink == 0 {
		return -1, unix.ENOENT // removed meanwhile
	}
	if err := acceptable(st.Mode, uint64(st.Nlink)); err != nil { //nolint:unconvert // not 64 bits wide everywhere
		return -1, err
	}
	return unix.Open("/proc/self/fd/"+strconv.Itoa(handle), flags|unix.O_CLOEXEC, 0)
}

func acceptable(mode uint32, links uint64) error {
	switch kind := mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK:
		return fmt.Errorf("it is a symbolic link, which berth does not follow here; remove it: %w", errdefs.ErrFailedPrecondition)
	case kind != unix.S_IFREG:
		return fmt.Errorf("it is not a regular file; remove it: %w", errdefs.ErrFailedPrecondition)
	case links > 1:
		return fmt.Errorf("it has %d hard links, so it may be another program's file; remove it: %w", links, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// parent opens the directory of name. It calls enter, if set, before each step.
func parent(root, name string, enter func(at int, step string) error) (*os.File, error) {
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("path %q leads out of %s: %w", name, root, errdefs.ErrInvalidArgument)
	}
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	fd, err := unix.Open(root, flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	dir := os.NewFile(uintptr(fd), root)
	steps := strings.Split(filepath.Clean(name), "/")
	for _, step := range steps[:len(steps)-1] {
		path := filepath.Join(dir.Name(), step)
		if enter != nil {
			err = enter(int(dir.Fd()), step)
		}
		if err == nil {
			fd, err = unix.Openat(int(dir.Fd()), step, flags|unix.O_NOFOLLOW, 0)
		}
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			err = fmt.Errorf("it is not a directory, or it is a symbolic link, which berth does not follow here; remove it: %w: %w", err, errdefs.ErrFailedPrecondition)
		}
		dir.Close()
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		dir = os.NewFile(uintptr(fd), path)
	}
	return dir, nil
}
