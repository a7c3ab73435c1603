// Package atomicfile replaces files as a whole: readers see the old or the new content, also after
// a crash of the writer.
package atomicfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Durability selects what a file survives.
type Durability int

const (
	// Relaxed files survive a crash of the writer. A power failure may leave the old content or an
	// empty file.
	Relaxed Durability = iota
	// Durable files survive a power failure.
	Durable
)

// Write replaces the file at path by one with this content and these permissions. After an error
// only the old file exists, except that a Durable file may already be replaced if its directory
// cannot be flushed. Writers of one path must serialize their calls: the temporary file beside it
// always has the same name, which begins with a dot and ends in ".new", so that killed writers
// leave at most one. A full disk is errdefs.ErrResourceExhausted.
func Write(path string, content []byte, mode fs.FileMode, d Durability) error {
	return WriteBy(TempPath(path), path, mode, d, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// TempPath returns the name of the temporary file beside path.
func TempPath(path string) string {
	dir, name := filepath.Split(path)
	return filepath.Join(dir, "."+name+".new")
}

// WriteJSON is Write for a value in JSON, readable only by its owner.
func WriteJSON(path string, v any, d Durability) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Write(path, text, 0o600, d)
}

// WriteBy is Write for content from a function. The temporary file fresh must be on the same
// filesystem as path.
func WriteBy(fresh, path string, mode fs.FileMode, d Durability, write func(io.Writer) error) (err error) {
	defer func() {
		if err == nil {
			return
		}
		err = Explain(err)
		if left := Remove(fresh); left != nil {
			err = errors.Join(err, left)
		}
	}()
	f, err := create(fresh, mode)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil && mode&0o077 != 0 {
		err = f.Chmod(mode) // the umask may have removed permissions
	}
	if err == nil && d == Durable {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	if d == Durable {
		return SyncDir(filepath.Dir(path))
	}
	return nil
}

// create creates a new file. It removes an existing one instead of following its link or keeping
// its permissions.
func create(path string, mode fs.FileMode) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := os.OpenFile(path, flags, mode)
	if !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	if err := Remove(path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, flags, mode)
}

// Symlink replaces the link at path by one to target, durably. Writers of one path must serialize
// their calls, as those of Write.
func Symlink(target, path string) error {
	if err := Remove(TempPath(path)); err != nil {
		return err
	}
	if err := os.Symlink(target, TempPath(path)); err != nil {
		return err
	}
	if err := os.Rename(TempPath(path), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// Remove removes a file, if it exists.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SyncDir flushes the entries of a directory.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Explain adds the class, the free space and the remedy to the error of a full disk. An error that
// already has the class, or names no path, stays unchanged: the kernel uses the same code for
// limits that are unrelated to disks.
func Explain(err error) error {
	var at *fs.PathError
	full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	if !full || errdefs.IsResourceExhausted(err) || !errors.As(err, &at) {
		return err
	}
	return fmt.Errorf("%w (%s); remove images or enlarge the filesystem: %w", err, FreeSpace(at.Path), errdefs.ErrResourceExhausted)
}

// FreeSpace describes the free space of the filesystem of a path, which need not exist.
func FreeSpace(path string) string {
	var s unix.Statfs_t
	for unix.Statfs(path, &s) != nil {
		if path = filepath.Dir(path); path == filepath.Dir(path) {
			break
		}
	}
	mib := func(blocks uint64) uint64 { return blocks * uint64(s.Bsize) >> 20 } //nolint:gosec // the kernel's block size is positive
	return fmt.Sprintf("%d of %d MiB and %d of %d inodes are free", mib(s.Bavail), mib(s.Blocks), s.Ffree, s.Files)
}
