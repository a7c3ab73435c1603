package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// lock keeps other runs from the node. It is on a directory that every node has, so that
// no file is left.
func lock(root nodefs.Root) (unlock func(), err error) {
	d, err := os.Open(root.Resolved("/var/lib"))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", d.Name(), err), d.Close())
	}
	return func() { d.Close() }, nil
}

// waitForLock waits until no other run is at work on the node.
func waitForLock(ctx context.Context, root nodefs.Root) (unlock func(), err error) {
	for told := false; ; told = true {
		unlock, err = lock(root)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return unlock, err
		}
		if !told {
			log.G(ctx).Info("Waiting for another run on this node")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
