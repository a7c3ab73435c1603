// Program reports what a pod may do that the systemd unit of its daemon could forbid: all processes
// that a daemon starts inherit the restrictions of its unit. Built for a 32-bit processor, it also
// shows that such programs run.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	linux32 = 0x8 // PER_LINUX32, which setarch sets for 32-bit programs
	fifo    = 1   // SCHED_FIFO
)

func main() {
	if _, err := os.Stdout.WriteString(report()); err != nil {
		os.Exit(1)
	}
}

func report() string {
	said := &strings.Builder{}
	fmt.Fprintf(said, "runs as %s\n", runtime.GOARCH)
	_, _, errno := unix.Syscall(unix.SYS_PERSONALITY, linux32, 0, 0)
	say(said, "changes its personality", errno)
	priority := int32(1)
	_, _, errno = unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, 0, fifo, uintptr(unsafe.Pointer(&priority)))
	say(said, "runs in real time", errno)
	fmt.Fprintf(said, "umask %04o\n", unix.Umask(0))
	var core unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_CORE, &core)
	fmt.Fprintf(said, "core %t\n", err == nil && core.Max > 0)
	return said.String()
}

func say(to *strings.Builder, what string, errno unix.Errno) {
	if errno != 0 {
		what = fmt.Sprintf("%s: %v", what, errno)
	}
	to.WriteString(what + "\n")
}
