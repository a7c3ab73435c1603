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
	d, err := openDir(dir)
	if err != nil {
		return func() {}, nil
	}
	for {
		err := unix.Flock(int(d.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return func() { _ = d.Close() }, nil
		}
		select {
		case <-ctx.Done():
			_ = d.Close()
			return nil, fmt.Errorf("checkpoint %s is being removed: %w", dir, ctx.Err())
		case <-time.After(lockInterval):
		}
	}
}

// alone locks a directory that nobody uses. The lock is held until the file is closed.
func alone(dir string) (*os.File, error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrInUse
	}
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

func openDir(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}
