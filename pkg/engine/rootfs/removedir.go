package rootfs

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
)

// How long, and how often, something may still be written into a directory that is
// being removed.
const (
	stragglersTimeout = 2 * time.Second
	stragglersPause   = 5 * time.Millisecond
)

// removeDir removes a directory that a runtime or a shim has worked in. One that
// has answered may still be at it: containerd's shim runs `runc kill` beside its
// answer to Delete, and that makes its log file again.
func removeDir(path string) error {
	for begin := time.Now(); ; time.Sleep(stragglersPause) {
		err := mountpoint.RemoveAll(path)
		if !errors.Is(err, unix.ENOTEMPTY) || time.Since(begin) > stragglersTimeout {
			return err
		}
	}
}
