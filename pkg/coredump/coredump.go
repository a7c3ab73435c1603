// Package coredump keeps the memory of processes that hold secrets off the disk.
package coredump

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Forbid has the kernel write no core of this process, wherever cores go. Programs that
// it starts are not concerned: an exec undoes it, and limits stay as they are. A change of
// this process's user or group undoes it as well.
func Forbid() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid core dumps: prctl(PR_SET_DUMPABLE): %w", err)
	}
	return nil
}
