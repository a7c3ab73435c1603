// Says what its pod may do that the unit of a daemon could have taken from it: what a
// unit filters stays filtered in all that the daemon ever starts. Built for a 32-bit
// processor it also says that such programs run.
package main

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	linux32 = 0x8 // PER_LINUX32, which setarch sets for 32-bit programs
	fifo    = 1   // SCHED_FIFO
)

func main() {
	fmt.Printf("runs as %s\n", runtime.GOARCH)
	_, _, errno := unix.Syscall(unix.SYS_PERSONALITY, linux32, 0, 0)
	say("changes its personality", errno)
	priority := int32(1)
	_, _, errno = unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, 0, fifo, uintptr(unsafe.Pointer(&priority)))
	say("runs in real time", errno)
	fmt.Printf("umask %04o\n", unix.Umask(0))
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		fmt.Printf("core %v\n", err)
		return
	}
	fmt.Printf("core %t\n", core.Max > 0)
}

func say(what string, errno unix.Errno) {
	if errno != 0 {
		fmt.Printf("%s: %v\n", what, errno)
		return
	}
	fmt.Println(what)
}
