package directory

import (
	"errors"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ErrInUse is returned for a checkpoint that is being written, read, sent or removed. It is of the
// class errdefs.ErrFailedPrecondition.
var ErrInUse = fmt.Errorf("the checkpoint is in use; try again later: %w", errdefs.ErrFailedPrecondition)

// Use keeps the checkpoint in dir from being removed, by any process, until release is called. It
// fails with ErrInUse while a removal is going on, so call it before reading the manifest. A
// directory that does not exist, or is on a filesystem without locks, is not removed by Remove
// either, and needs no lock.
func Use(dir string) (release func(), err error) {
	d, err := locked(dir, unix.LOCK_SH)
	switch {
	case err == nil:
		return func() { _ = d.Close() }, nil
	case errors.Is(err, ErrInUse):
		return nil, fmt.Errorf("use %s: %w", dir, err)
	}
	return func() {}, nil
}

// locked locks the directory that is at a path, until the file is closed. It fails with ErrInUse
// if another lock conflicts.
func locked(dir string, how int) (*os.File, error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(d.Fd()), how|unix.LOCK_NB)
	// It may have been removed before it was locked, and replaced by another.
	if errors.Is(err, unix.EWOULDBLOCK) || err == nil && !isAt(d, dir) {
		err = ErrInUse
	}
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// isAt reports whether an open directory is still the one at a path.
func isAt(d *os.File, path string) bool {
	opened, err := d.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(opened, now)
}
