package retention

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ErrInUse says that a checkpoint is written, read or sent by somebody. It is of the class
// errdefs.ErrFailedPrecondition.
var ErrInUse = fmt.Errorf("the checkpoint is in use; try again later: %w", errdefs.ErrFailedPrecondition)

// lockInterval is how often a lock is tried that somebody has: those who remove have it for as long
// as that takes.
const lockInterval = 20 * time.Millisecond

// Use keeps the checkpoint in dir from being removed until release is called, by this process and
// all others. It waits for a removal that has begun, and so comes before the manifest is read. A
// directory that is not there, or on a filesystem without locks, is left to whoever uses it: none
// is removed there.
func Use(ctx context.Context, dir string) (release func(), err error) {
	release, err = await(ctx, dir, unix.LOCK_SH)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s is being removed: %w", dir, err)
	}
	return release, nil
}

// await locks the directory that is at a path, if it can be locked. It waits for others.
func await(ctx context.Context, dir string, how int) (release func(), err error) {
	for {
		d, err := locked(dir, how)
		switch {
		case err == nil:
			return func() { _ = d.Close() }, nil
		case !errors.Is(err, ErrInUse):
			return func() {}, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lockInterval):
		}
	}
}

// alone locks a directory that nobody uses. The lock is held until the file is closed.
func alone(dir string) (*os.File, error) { return locked(dir, unix.LOCK_EX) }

// locked locks the directory that is at a path, or fails with ErrInUse if others have a lock that
// does not go with it.
func locked(dir string, how int) (*os.File, error) {
	for {
		d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(d.Fd()), how|unix.LOCK_NB)
		if err == nil && at(d, dir) {
			return d, nil
		}
		_ = d.Close()
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, ErrInUse
		case err != nil:
			return nil, err
		}
		// It was removed before it was locked, and another may have taken its place.
	}
}

// at says whether a directory that was opened is still at its path.
func at(d *os.File, path string) bool {
	is, err := d.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(is, now)
}
