// berth-pause is the process of a sandbox that needs one: the first process of a
// PID namespace that the pod's containers share, or the first container of a
// runtime with a kernel of its own. It reaps what is left to it and waits for
// SIGTERM or SIGINT. It is linked statically and is the only file of its root
// filesystem.
//
// Called as connect, it is run by an exec and carries a forwarded connection to a
// port of a pod whose network is inside of its runtime. Called as look, it tells what a
// self-check pod sees of its kernel and has of the node.
package main

import (
	"os"
	"os/signal"
	"path"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

func main() {
	// There is nothing to collect: all that it ever allocates it has by then.
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

// reap takes every child that has ended; one signal may stand for many.
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
