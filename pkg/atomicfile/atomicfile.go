// Package atomicfile replaces files as a whole: who reads one sees what was there or
// what is there now, also after a crash of the writer.
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

// Durability says what a file survives.
type Durability int

const (
	// Relaxed files survive the writer. A power cut may leave what was there before, or
	// an empty file.
	Relaxed Durability = iota
	// Durable files survive a power cut.
	Durable
)

// Write replaces the file at path by one with this content and these permissions. After
// an error the old file is there, and nothing else; only if a Durable one's directory
// cannot be flushed it may be the new one. Writers of one path must wait for
// each other: the name of the new file beside it, which begins with a dot and ends in
// ".new", is always the same, so that writers that were killed leave no more than one.
// A full disk is errdefs.ErrResourceExhausted.
func Write(path string, content []byte, mode fs.FileMode, d Durability) error {
	return WriteBy(Fresh(path), path, mode, d, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// Fresh is the name of the new file beside path.
func Fresh(path string) string {
	dir, name := filepath.Split(path)
	return filepath.Join(dir, "."+name+".new")
}

// WriteJSON is Write for a value, with permissions for its owner alone.
func WriteJSON(path string, v any, d Durability) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Write(path, text, 0o600, d)
}

// WriteBy is Write for what write writes, with the name of the new file, which is on the
// same filesystem.
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
		err = f.Chmod(mode) // the umask may have taken some
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

// create makes a file anew: nobody's link is followed, and nobody's permissions are kept.
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

// Remove removes a file; one that is not there is no error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SyncDir makes durable which files a directory has.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Explain gives an error of a full disk its class, and names the free space and what
// to do. An error that has its class, or names no path, stays as it is: the kernel has
// the same word for limits that are none of a disk.
func Explain(err error) error {
	var at *fs.PathError
	full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
	if !full || errdefs.IsResourceExhausted(err) || !errors.As(err, &at) {
		return err
	}
	return fmt.Errorf("%w (%s); remove images or enlarge the filesystem: %w", err, Room(at.Path), errdefs.ErrResourceExhausted)
}

// Room is the free space of the filesystem of a path, which need not exist, in words.
func Room(path string) string {
	var s unix.Statfs_t
	for unix.Statfs(path, &s) != nil {
		if path = filepath.Dir(path); path == filepath.Dir(path) {
			break
		}
	}
	mib := func(blocks uint64) uint64 { return blocks * uint64(s.Bsize) >> 20 } //nolint:gosec // the kernel's block size is positive
	return fmt.Sprintf("%d of %d MiB and %d of %d inodes are free", mib(s.Bavail), mib(s.Blocks), s.Ffree, s.Files)
}
