// Command berth-pause is the sandbox process of pods that need one: the first process of a PID
// namespace that the pod's containers share, or the first container of a runtime with its own
// kernel. It reaps orphaned processes and waits for SIGTERM or SIGINT. It is linked statically and
// is the only file of its root filesystem.
//
// Called as connect, by an exec, it forwards a connection to a port of a pod that has its network
// inside the runtime. Called as look, it prints what a self-check pod sees of its kernel and node.
package main

import (
	"os"
	"os/signal"
	"path"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

func main() {
	// The program runs without garbage collection: it allocates little after its start.
	debug.SetGCPercent(-1)
	if path.Base(os.Args[0]) == "look" {
		look()
		return
	}
	if len(os.Args) == 2 && path.Base(os.Args[0]) == "connect" {
		connect(os.Args[1])
		return
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGINT)
	for s := range signals {
		if s != unix.SIGCHLD {
			return
		}
		reap()
	}
}

// reap reaps all exited children; one signal may stand for several.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}
