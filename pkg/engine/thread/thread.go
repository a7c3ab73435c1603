// Package thread runs functions on operating system threads of their own.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on an operating system thread that is ended afterwards, so
// that no other goroutine ever runs in namespaces that f entered.
//
// The runtime cannot end the main thread: it would be parked in the namespace
// for ever, holding it, and /proc/self/ns would show it. If the goroutine was
// given the main thread, it keeps that while another goroutine, which must
// therefore be on another thread, does the work.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked: ending so ends the thread
		if unix.Gettid() == unix.Getpid() {
			err := Run(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
