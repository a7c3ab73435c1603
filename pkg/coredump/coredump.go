// Package coredump keeps the memory of processes that hold secrets off the disk.
package coredump

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Forbid disables core dumps of this process, to files and to core_pattern programs alike. Programs
// that it starts are not affected: exec resets the flag, and limits are unchanged. A change of this
// process's user or group resets it, too.
func Forbid() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid core dumps: prctl(PR_SET_DUMPABLE): %w", err)
	}
	return nil
}
